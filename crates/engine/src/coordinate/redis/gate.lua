-- Decides for all nodes, atomically, about the circuits, tokens and slots of a whole batch.
--
-- The rules are those of `redrive-core` (breaker, limiter), to the millisecond: a property test compares both. The
-- lines prepended to this text set NOW, the time in milliseconds. A batch that is sent twice is applied once and
-- gets the same reply twice.
--
-- KEYS[1]: prefix of all keys. ARGV[1]: the node's epoch. ARGV[2]: the batch's number. ARGV[3]: the batch.

local NS, NODE, BATCH_ID = KEYS[1], ARGV[1], ARGV[2]
local BUCKET_COUNT, MAX_SLEEP_MS, ROUNDING = 10, 86400000, 1e-9
-- Units of one token: a limit of N per minute refills N units per millisecond.
local TOKEN_UNITS, MAX_DISORDER_MS = 60000, 1000
local MAX_CATEGORY_COUNT, MAX_TOTAL_COUNT = 65535, 4294967295
local REPLY_TTL_MS, SLOTS_TTL_MS, WAITERS_TTL_MS = 60000, 15000, 1000
local HOUR_MS, WEEK_MS, MIN_DRAIN_INTERVAL_MS = 3600000, 604800000, 60000

local previous_reply = redis.call('GET', NS .. 'reply:' .. NODE)
if previous_reply then
  local cut = string.find(previous_reply, ' ', 1, true)
  if string.sub(previous_reply, 1, cut - 1) == BATCH_ID then return string.sub(previous_reply, cut + 1) end
end

local batch = cjson.decode(ARGV[3])

-- Start of the state in Redis, reset when a node returns from fallback (`drain`). Tokens taken before are unknown,
-- so every bucket counts as empty at that time.
local started_at = tonumber(redis.call('GET', NS .. 'started_at') or '')
if not started_at or batch.drain and NOW - started_at > MIN_DRAIN_INTERVAL_MS then
  started_at = NOW
  redis.call('SET', NS .. 'started_at', string.format('%.0f', NOW))
end
redis.call('PEXPIRE', NS .. 'started_at', '604800000')

local function text(number) return string.format('%.0f', number) end

local function publish(what) redis.call('PUBLISH', NS .. 'peer_messages', NODE .. ' ' .. what) end

-- --- tokens ---------------------------------------------------------------------------------------------------

local buckets = {}

local function bucket(name)
  local known = buckets[name]
  if known then return known end
  known = { spent = 0, at = 0, burst = 0 }
  local stored = redis.call('GET', NS .. 'bucket:' .. name)
  if stored then
    local spent, at, burst = string.match(stored, '^(%d+):(%d+):(%d+)$')
    known = { spent = tonumber(spent), at = tonumber(at), burst = tonumber(burst) }
  end
  buckets[name] = known
  return known
end

-- Returns the units not refilled yet, and as of when. Buckets of API keys do not count as empty at `started_at`.
local function spent(held, limit)
  local rate, capacity = math.max(limit[1], 1), limit[2] * TOKEN_UNITS
  local since_start = math.max(0, capacity - math.max(0, NOW - started_at) * rate)
  if string.sub(limit[3], 1, 4) == 'key:' then since_start = 0 end
  if held.at - NOW > MAX_DISORDER_MS then return since_start, NOW end
  local taken = held.spent
  if held.burst ~= limit[2] then taken = math.min(taken, capacity) end
  local left = math.max(0, taken - math.max(0, NOW - held.at) * rate)
  return math.max(left, since_start), math.max(held.at, NOW)
end

-- Returns when the next token is available; nil if one is available now.
local function token_due(name, limit)
  local taken, at = spent(bucket(name), limit)
  local short = taken + TOKEN_UNITS - limit[2] * TOKEN_UNITS
  if short <= 0 then return nil end
  return at + math.ceil(short / math.max(limit[1], 1))
end

local function take_token(name, limit)
  local held = bucket(name)
  local taken, at = spent(held, limit)
  held.spent, held.at, held.burst = taken + TOKEN_UNITS, at, limit[2]
  held.changed, held.rate = true, math.max(limit[1], 1)
end

local function store_buckets()
  for name, held in pairs(buckets) do
    if held.changed then
      local full_in = math.ceil(held.spent / held.rate) + math.max(0, held.at - NOW)
      redis.call('SET', NS .. 'bucket:' .. name, text(held.spent) .. ':' .. text(held.at) .. ':' .. text(held.burst),
        'PX', text(math.min(full_in + 60000, WEEK_MS)))
    end
  end
end

-- --- circuits -------------------------------------------------------------------------------------------------

local function no_counts(categories)
  local counts = { 0, 0 }
  for index = 1, categories do counts[2 + index] = 0 end
  return counts
end

local function new_window(length, categories)
  local parts = {}
  for index = 1, BUCKET_COUNT do parts[index] = no_counts(categories) end
  return { start = NOW, width = math.max(1, math.floor(length / BUCKET_COUNT)), parts = parts }
end

local function age(window, index)
  return math.max(0, NOW - window.start) + (index - 1) * window.width
end

local function window_counts(window, length, categories)
  local counts = no_counts(categories)
  for index = 1, BUCKET_COUNT do
    if age(window, index) >= length then break end
    for field, count in ipairs(window.parts[index]) do
      counts[field] = math.min(MAX_TOTAL_COUNT, counts[field] + count)
    end
  end
  return counts
end

local function add_to(part, field, count)
  part[field] = math.min(field > 2 and MAX_CATEGORY_COUNT or MAX_TOTAL_COUNT, part[field] + count)
end

-- Redistributes the calls into buckets of another length, making none of them younger.
local function resized(window, length, categories)
  local other = new_window(length, categories)
  for index = 1, BUCKET_COUNT do
    local part = other.parts[math.ceil(age(window, index) / other.width) + 1]
    if not part then break end
    for field, count in ipairs(window.parts[index]) do add_to(part, field, count) end
  end
  return other
end

local function advance_window(window, length, categories)
  local width = math.max(1, math.floor(length / BUCKET_COUNT))
  if window.width ~= width then window = resized(window, length, categories) end
  if window_counts(window, length, categories)[1] == 0 then return new_window(length, categories) end
  local steps = math.min(BUCKET_COUNT, math.floor(age(window, 1) / window.width))
  for _ = 1, steps do
    table.insert(window.parts, 1, no_counts(categories))
    table.remove(window.parts)
  end
  window.start = window.start + steps * window.width
  return window
end

local Circuit = {}

-- Restores a circuit from the state that a node keeps in case Redis loses it.
function Circuit.restore(saved, categories)
  local circuit = { phase = 'closed', generation = saved.generation, since = saved.since, forced = saved.forced }
  if saved.forced then
    if saved.forced.open then circuit.phase = 'open' end
  elseif saved.state == 'open' then
    circuit.phase, circuit['until'] = 'open', math.min(saved['until'] or NOW, NOW + MAX_SLEEP_MS)
  elseif saved.state == 'half_open' then
    circuit.phase, circuit.trial = 'half_open', { in_flight = {}, results = {}, successes = 0, issued = 0 }
  end
  if circuit.phase ~= 'closed' then
    circuit.sleep, circuit.failures = saved.sleep, saved.failures
    circuit.counts = saved.counts or no_counts(categories)
  end
  return circuit
end

function Circuit.enter(circuit, phase)
  circuit.phase, circuit.generation, circuit.since = phase, circuit.generation + 1, NOW
  circuit['until'], circuit.trial, circuit.provisional = nil, nil, nil
  if phase ~= 'closed' then circuit.window = nil end
  circuit.changed = true
end

function Circuit.close(circuit)
  circuit.sleep, circuit.failures, circuit.counts, circuit.window = nil, nil, nil, nil
  Circuit.enter(circuit, 'closed')
  circuit.forced = nil
end

function Circuit.open(circuit, policy, failures, counts)
  circuit.sleep = math.min(MAX_SLEEP_MS, policy.sleep * 2 ^ math.min(failures, 32))
  circuit.failures, circuit.counts = failures, counts
  Circuit.enter(circuit, 'open')
  circuit['until'] = NOW + circuit.sleep
end

local function decision_at(trial, policy)
  return trial.first and trial.first + math.max(policy.sleep, 1)
end

local function expire(circuit)
  local trial, remaining = circuit.trial, {}
  for _, probe in ipairs(trial.in_flight) do
    if NOW < probe[3] then remaining[#remaining + 1] = probe end
  end
  if #remaining < #trial.in_flight then trial.in_flight, circuit.changed = remaining, true end
end

local function decision(trial, policy)
  if trial.successes >= policy.need then return true end
  local returned = #trial.results
  if trial.successes + math.max(0, policy.probes - returned) < policy.need then return false end
  local at = decision_at(trial, policy)
  if #trial.in_flight == 0 and at and NOW >= at then
    return trial.successes + ROUNDING >= returned * policy.recovered
  end
  return nil
end

-- Applies the timed transitions that are due.
function Circuit.advance(circuit, policy, categories)
  if circuit.forced then
    if circuit.forced['until'] and NOW >= circuit.forced['until'] then Circuit.close(circuit) end
  elseif circuit.phase == 'closed' then
    return
  elseif not policy.enabled then
    Circuit.close(circuit)
  elseif circuit.phase == 'open' then
    -- The clock was set back since the circuit opened: wait for at most one sleep window from now.
    local latest = NOW + (circuit.sleep or MAX_SLEEP_MS)
    if circuit['until'] > latest + MAX_DISORDER_MS then circuit['until'], circuit.changed = latest, true end
    if NOW >= circuit['until'] then
      Circuit.enter(circuit, 'half_open')
      circuit.trial = { in_flight = {}, results = {}, successes = 0, issued = 0 }
    end
  else
    expire(circuit)
    local recovered = decision(circuit.trial, policy)
    if recovered == true then
      Circuit.close(circuit)
    elseif recovered == false then
      Circuit.open(circuit, policy, (circuit.failures or 0) + 1, circuit.counts or no_counts(categories))
    end
  end
end

-- Records calls outside a half-open period: `successes` that succeeded, then one failure per listed category.
function Circuit.record_calls(circuit, policy, successes, failures, categories)
  -- A timed transition may happen after the first success.
  for _, count in ipairs({ math.min(successes, 1), math.max(successes - 1, 0) }) do
    if circuit.phase == 'closed' and policy.enabled and count > 0 then
      local window = circuit.window or new_window(policy.window, categories)
      circuit.window = advance_window(window, policy.window, categories)
      add_to(circuit.window.parts[1], 1, count)
      circuit.changed = true
    end
    if count > 0 then Circuit.advance(circuit, policy, categories) end
  end
  for _, category in ipairs(failures) do
    if circuit.phase == 'closed' and policy.enabled then
      local window = circuit.window or new_window(policy.window, categories)
      circuit.window = advance_window(window, policy.window, categories)
      local part = circuit.window.parts[1]
      add_to(part, 1, 1)
      add_to(part, 2, 1)
      add_to(part, 2 + category, 1)
      circuit.changed = true
      local counts = window_counts(circuit.window, policy.window, categories)
      if not circuit.forced and counts[1] >= policy.min
        and counts[2] * 100 + ROUNDING >= counts[1] * policy.errors then
        Circuit.open(circuit, policy, 0, counts)
      end
    end
    Circuit.advance(circuit, policy, categories)
  end
end

-- Records the result of a probe: 1 for success, 0 for failure with its category, -1 for no information. A result
-- that arrives when the circuit is already closed counts as an ordinary call.
function Circuit.record_probe(circuit, policy, probe, categories)
  if circuit.phase == 'closed' and probe[3] >= 0 then
    return Circuit.record_calls(circuit, policy, probe[3], probe[3] == 0 and { probe[4] } or {}, categories)
  end
  if circuit.phase == 'half_open' then
    expire(circuit)
    local trial = circuit.trial
    for index, one in ipairs(trial.in_flight) do
      if circuit.generation == probe[1] and one[1] == probe[2] then
        -- Same as `swap_remove` in `redrive-core`, so that the order is equal.
        trial.in_flight[index] = trial.in_flight[#trial.in_flight]
        trial.in_flight[#trial.in_flight] = nil
        if probe[3] >= 0 then
          trial.results[#trial.results + 1] = one[2]
          trial.successes = trial.successes + probe[3]
          trial.first = trial.first or NOW
        end
        circuit.changed = true
        break
      end
    end
  end
  Circuit.advance(circuit, policy, categories)
end

local function was_probed(trial, event)
  for _, known in ipairs(trial.results) do if known == event then return true end end
  for _, probe in ipairs(trial.in_flight) do if probe[2] == event then return true end end
  return false
end

local function probes_left(trial, policy)
  return math.max(0, policy.probes - #trial.results - #trial.in_flight)
end

-- Returns 'go'; or 'probe' and its number; or 'wait', until when, and whether this event was already a probe.
function Circuit.may_call(circuit, policy, event, timeout, categories)
  Circuit.advance(circuit, policy, categories)
  if circuit.forced and circuit.forced.open then return 'wait', circuit.forced['until'] end
  if circuit.phase == 'closed' then return 'go' end
  if circuit.phase == 'open' then return 'wait', circuit['until'] end
  local trial = circuit.trial
  local at, known = decision_at(trial, policy), was_probed(trial, event)
  if not known and not (at and NOW >= at) and probes_left(trial, policy) > 0 then
    local number = trial.issued
    trial.issued = (trial.issued + 1) % 65536
    trial.in_flight[#trial.in_flight + 1] = { number, event, NOW + timeout }
    circuit.changed = true
    return 'probe', number
  end
  if known and at and at > NOW then return 'wait', at, true end
  local first
  for _, probe in ipairs(trial.in_flight) do first = math.min(first or probe[3], probe[3]) end
  return 'wait', first, known and first ~= nil
end

function Circuit.release_probe(circuit, number)
  if circuit.phase ~= 'half_open' then return end
  local in_flight = circuit.trial.in_flight
  for index, probe in ipairs(in_flight) do
    if probe[1] == number then
      in_flight[index] = in_flight[#in_flight]
      in_flight[#in_flight] = nil
      return
    end
  end
end

function Circuit.force(circuit, forced, categories)
  local had = circuit.forced
  if had and had.open == forced.open and had['until'] == forced['until'] and had.by == forced.by then return end
  local window = circuit.window
  if forced.open then
    local counts = circuit.counts or no_counts(categories)
    if window then counts = window_counts(window, window.width * BUCKET_COUNT, categories) end
    circuit.sleep, circuit.failures, circuit.counts = 0, 0, counts
    Circuit.enter(circuit, 'open')
  else
    circuit.sleep, circuit.failures, circuit.counts = nil, nil, nil
    Circuit.enter(circuit, 'closed')
    circuit.window = window
  end
  circuit.forced = forced
end

function Circuit.reset(circuit)
  if not circuit.forced and circuit.phase == 'closed' then
    circuit.window, circuit.changed = nil, true
  else
    Circuit.close(circuit)
  end
end

function Circuit.saved(circuit)
  local saved = { state = circuit.phase, generation = circuit.generation, since = circuit.since,
    sleep = circuit.sleep or 0, failures = circuit.failures or 0, counts = circuit.counts, forced = circuit.forced }
  if circuit.phase == 'open' and not circuit.forced then saved['until'] = circuit['until'] end
  return saved
end

local function store_circuit(key, circuit, policy)
  if not circuit.changed then return end
  circuit.changed = nil
  local is_long_lived = circuit.phase ~= 'closed' or circuit.forced
  local ttl = is_long_lived and math.max(0, (circuit['until'] or NOW) - NOW) + WEEK_MS or 2 * policy.window + HOUR_MS
  redis.call('SET', key, cmsgpack.pack(circuit), 'PX', text(ttl))
end

-- --- slots ----------------------------------------------------------------------------------------------------

-- Renews and grants slots. A node holds some of the requests that a webhook may have in flight and uses them
-- without a request to Redis. It holds `hold`, of which `used` are in use, and needs at least `need` more. Returns
-- how many it holds from now on, how many nodes want some, and how many wait.
local function slots(id, cap, hold, used, need)
  local key = NS .. 'slots:' .. id
  local rows = redis.call('HGETALL', key)
  local mine, others, since, earlier, waiting, nodes = nil, 0, NOW, 0, 0, { [NODE] = true }
  local waiting_since = {}
  for index = 1, #rows, 2 do
    local name, count, ends = rows[index], string.match(rows[index + 1], '^(%d+):(%d+)$')
    count, ends = tonumber(count), tonumber(ends)
    if ends <= NOW then
      redis.call('HDEL', key, name)
    elseif string.sub(name, 1, 1) == 'w' then
      if name == 'w' .. NODE then since = count else waiting_since[#waiting_since + 1] = count end
      nodes[string.sub(name, 2)] = true
    elseif name == NODE then
      mine = count
    else
      others = others + count
      nodes[name] = true
    end
  end
  for _, time in ipairs(waiting_since) do
    waiting = waiting + 1
    if time < since then earlier = earlier + 1 end
  end
  local claimants = 0
  for _ in pairs(nodes) do claimants = claimants + 1 end
  -- Slots that were not renewed in time may have been granted to another node. Requests in flight always count:
  -- after the cap was lowered, no node starts a request before enough of them have ended.
  local held = math.max(used, math.min(hold, mine or cap, math.max(0, cap - others)))
  local free = math.max(0, cap - others - held)
  local give = 0
  if need > 0 and waiting == 0 then
    give = free
  elseif need > 0 then
    local fair = math.max(1, math.ceil(cap / claimants))
    give = math.max(0, math.min(need, free - earlier, fair - held))
  end
  local total = held + give
  if total > 0 then
    redis.call('HSET', key, NODE, text(total) .. ':' .. text(NOW + SLOTS_TTL_MS))
  else
    redis.call('HDEL', key, NODE)
  end
  if need > give and total < cap and give == 0 then
    redis.call('HSET', key, 'w' .. NODE, text(since) .. ':' .. text(NOW + WAITERS_TTL_MS))
    publish('slots ' .. id .. ' ' .. text(claimants))
  else
    redis.call('HDEL', key, 'w' .. NODE)
  end
  redis.call('PEXPIRE', key, text(SLOTS_TTL_MS))
  return total, claimants, waiting
end

-- --- the batch ------------------------------------------------------------------------------------------------

local TOKEN_LIMITS = { { 'global', 'node' }, { 'tenant', 'tenant' }, { 'own', 'webhook' } }

-- Decides whether one delivery may be sent.
local function admit(section, circuit, ask, capacity, categories)
  local permit, more, probed = Circuit.may_call(circuit, section.policy, ask[1], ask[2], categories)
  if permit == 'wait' then
    if circuit.phase == 'half_open' then
      if probed then return { say = 'probed', ['until'] = more } end
      return { say = 'no_probe' }
    end
    return { say = 'wait', why = 'circuit', scope = 'webhook', ['until'] = more and math.max(more, NOW + 1) }
  end
  local refusal
  if not ask[3] and capacity.free <= 0 then
    refusal = { say = 'wait', why = 'slots', scope = 'webhook' }
  else
    local due, scope
    for _, kind in ipairs(TOKEN_LIMITS) do
      local limit = section[kind[1]]
      local at = limit and token_due(limit[3], limit)
      if at and at > NOW and (not due or at >= due) then due, scope = at, kind[2] end
    end
    if due then refusal = { say = 'wait', why = 'tokens', scope = scope, ['until'] = due } end
  end
  if refusal then
    if permit == 'probe' then Circuit.release_probe(circuit, more) end
    return refusal
  end
  for _, kind in ipairs(TOKEN_LIMITS) do
    local limit = section[kind[1]]
    if limit then take_token(limit[3], limit) end
  end
  if not ask[3] then capacity.free = capacity.free - 1 end
  return { say = 'go', circuit = circuit.phase, probe = permit == 'probe' and more or nil }
end

local function run_section(section)
  local reply = {}
  if not section.policy then
    reply.slots = { slots(section.id, section.cap, section.hold, section.used or 0, section.need) }
    return reply
  end
  local key = NS .. 'circuit:' .. section.id
  local policy, categories = section.policy, batch.categories
  local stored = redis.call('GET', key)
  local circuit
  if stored then circuit = cmsgpack.unpack(stored) end
  -- If this circuit was lost or is older than the node's, use the node's.
  local missing = not circuit or circuit.provisional
  if section.saved and (missing or section.saved.generation > circuit.generation) then
    circuit = Circuit.restore(section.saved, categories)
    circuit.changed = true
  elseif not circuit then
    circuit = { phase = 'closed', generation = NOW, since = NOW, provisional = true }
  end
  local from, generation = circuit.phase, circuit.generation
  for _, probe in ipairs(section.probes or {}) do Circuit.record_probe(circuit, policy, probe, categories) end
  Circuit.record_calls(circuit, policy, section.succeeded or 0, section.failed or {}, categories)
  Circuit.advance(circuit, policy, categories)
  if section.reset then Circuit.reset(circuit) end
  if section.force then Circuit.force(circuit, section.force, categories) end
  local capacity = { free = 0 }
  if section.cap then
    reply.slots = { slots(section.id, section.cap, section.hold, section.used or 0, section.need) }
    capacity.free = reply.slots[1] - section.hold
  end
  if section.asks then
    reply.grants = {}
    for index, ask in ipairs(section.asks) do
      reply.grants[index] = admit(section, circuit, ask, capacity, categories)
    end
  end
  reply.generation = circuit.generation
  if circuit.generation ~= generation then
    reply.from = from
    publish('circuit ' .. section.id)
  end
  local is_newer = section.knows ~= circuit.generation
    and (section.knows > 0 or circuit.phase ~= 'closed' or circuit.forced)
  if circuit.generation ~= generation or is_newer then
    reply.saved = Circuit.saved(circuit)
  end
  if section.want_counts then
    reply.counts = circuit.counts or no_counts(categories)
    if circuit.window then reply.counts = window_counts(circuit.window, policy.window, categories) end
  end
  if circuit.trial and policy.enabled then
    reply.probes = { #circuit.trial.in_flight, probes_left(circuit.trial, policy), #circuit.trial.results,
      circuit.trial.successes }
  end
  store_circuit(key, circuit, policy)
  return reply
end

-- Empty lists are left out: cjson would encode them as objects.
local reply = { now = NOW, started_at = started_at, webhooks = batch.webhooks and {}, tokens = batch.tokens and {} }
for index, section in ipairs(batch.webhooks or {}) do reply.webhooks[index] = run_section(section) end
for index, limit in ipairs(batch.tokens or {}) do
  local due = token_due(limit[3], limit)
  if not due then take_token(limit[3], limit) end
  local taken = spent(bucket(limit[3]), limit)
  reply.tokens[index] = { due or 0, math.max(0, math.floor((limit[2] * TOKEN_UNITS - taken) / TOKEN_UNITS)) }
end
store_buckets()
if batch.work then publish('work') end
if batch.change then publish('change') end
local written = cjson.encode(reply)
redis.call('SET', NS .. 'reply:' .. NODE, BATCH_ID .. ' ' .. written, 'PX', text(REPLY_TTL_MS))
return written
