-- Sets NOW to the time of all nodes: this server's clock plus its offset to the store's time. ARGV[4]: the node's
-- time.
local server_time = redis.call('TIME')
server_time = server_time[1] * 1000 + math.floor(server_time[2] / 1000)
local node_time, skew = tonumber(ARGV[4]), tonumber(redis.call('GET', KEYS[1] .. 'skew') or '')
if not skew or math.abs(server_time + skew - node_time) > 1000 then
  skew = node_time - server_time
  redis.call('SET', KEYS[1] .. 'skew', string.format('%.0f', skew), 'PX', '604800000')
end
local NOW = server_time + skew
