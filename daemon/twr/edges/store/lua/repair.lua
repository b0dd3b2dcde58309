-- Give every live job of one route a place again, whatever was lost of its places.
-- Looks at the route's oldest jobs, and at some more from a rank that the caller moves on.
-- Safe to repeat: a job that has its place is left alone.
--
-- ARGV: route, rank to look at as well, most of each
-- Returns the rank for the next call, then ids repaired.
local route, from, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ready, suspect = route_key(route, 'ready'), route_key(route, 'suspect')
local out = {0}

-- A search in a long list costs too much here: it is left until the list has drained.
local function in_list(key, id)
  local length = call('LLEN', key)
  return length > 1000 or (length > 0 and call('LPOS', key, id) ~= false)
end

local function repaired(id) out[#out + 1] = id end

-- A job that is ready, delayed or in flight is the head of its lane.
local function repair_head(id, lane)
  if not lane or lane == '' then return end
  local key = route_key(route, 'lane:' .. lane)
  if call('LINDEX', key, 0) ~= id and not in_list(key, id) then
    call('LPUSH', key, id)
    repaired(id)
    -- One that was made the head meanwhile waits again; its entry in the ready list is stale.
    local behind = call('LINDEX', key, 1)
    if behind and call('HGET', job_key(behind), 'state') == 'ready' then
      call('HSET', job_key(behind), 'state', 'waiting')
      call('HDEL', job_key(behind), 'token', 'owner')
    end
  end
end

local function repair_waiting(id, lane)
  local key = route_key(route, 'lane:' .. lane)
  if not in_list(key, id) then
    call('RPUSH', key, id)
    repaired(id)
  end
  local head = call('LINDEX', key, 0)
  local state = call('HGET', job_key(head), 'state')
  if not state or state == 'dead' or state == 'waiting' then
    advance(route, lane)
    repaired(call('LINDEX', key, 0) or head)
  end
end

local function repair_place(id, state, due)
  if state == 'processing' then
    if due >= NOW or call('ZSCORE', route_key(route, 'processing'), id) then return end
    give_back(id, route, 'LPUSH')
  elseif state == 'delayed' then
    if call('ZADD', route_key(route, 'delayed'), 'NX', due, id) == 0 then return end
  else
    local key = state == 'ready' and ready or suspect
    if in_list(key, id) then return end
    call('LPUSH', key, id)
  end
  repaired(id)
end

local function repair(id)
  local job = call('HMGET', job_key(id), 'state', 'due_ms', 'lane')
  local state = job[1]
  if not state or state == 'dead' then
    call('ZREM', route_key(route, 'all'), id)
  elseif state == 'waiting' then
    repair_waiting(id, job[3])
  else
    repair_head(id, job[3])
    repair_place(id, state, tonumber(job[2] or 0))
  end
end

local all = route_key(route, 'all')
for _, id in ipairs(call('ZRANGE', all, 0, most - 1)) do repair(id) end
from = math.max(from, most)
local ids = call('ZRANGE', all, from, from + most - 1)
for _, id in ipairs(ids) do repair(id) end
if #ids == most then out[1] = from + most end
return out
