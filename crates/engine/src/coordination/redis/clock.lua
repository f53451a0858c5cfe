-- Sets NOW to the time of all nodes: this server's clock plus its offset to the store's time. ARGV[4]: the node's
-- time.
local here = redis.call('TIME')
here = here[1] * 1000 + math.floor(here[2] / 1000)
local told, skew = tonumber(ARGV[4]), tonumber(redis.call('GET', KEYS[1] .. 'skew') or '')
if not skew or math.abs(here + skew - told) > 1000 then
  skew = told - here
  redis.call('SET', KEYS[1] .. 'skew', string.format('%.0f', skew), 'PX', '604800000')
end
local NOW = here + skew
