-- Give every live job of one route a place again, whatever was lost of its places.
-- Looks at the route's oldest jobs only: as the others are delivered, a stray becomes one of them.
-- Safe to repeat: a job that has its place is left alone.
--
-- ARGV: route, most
-- Returns ids repaired.
local route, most = ARGV[1], tonumber(ARGV[2])
local ready = route_key(route, 'ready')
local repaired = {}
local waiting_ready = call('LLEN', ready)

-- A search in a long list costs too much here: it is left until the list has drained.
local function in_list(key, id, length)
  if length == 0 then return false end
  return length > 1000 or call('LPOS', key, id) ~= false
end

local function to_ready(id)
  call('HSET', job_key(id), 'state', 'ready')
  call('LPUSH', ready, id)
  repaired[#repaired + 1] = id
end

local function repair_waiting(id, lane)
  local key = route_key(route, 'lane:' .. lane)
  if not in_list(key, id, call('LLEN', key)) then
    call('RPUSH', key, id)
    repaired[#repaired + 1] = id
  end
  local head = call('LINDEX', key, 0)
  if head == id then
    to_ready(id)
  else
    local state = call('HGET', job_key(head), 'state')
    if not state or state == 'dead' or state == 'waiting' then
      advance(route, lane)
      repaired[#repaired + 1] = head
    end
  end
end

local function repair(id)
  local job = call('HMGET', job_key(id), 'state', 'due_ms', 'lane')
  local state, due = job[1], tonumber(job[2] or 0)
  if not state or state == 'dead' then
    call('ZREM', route_key(route, 'all'), id)
  elseif state == 'processing' then
    if due < NOW and not call('ZSCORE', route_key(route, 'processing'), id) then to_ready(id) end
  elseif state == 'delayed' then
    if not call('ZSCORE', route_key(route, 'delayed'), id) then
      call('ZADD', route_key(route, 'delayed'), due, id)
      repaired[#repaired + 1] = id
    end
  elseif state == 'ready' then
    if not in_list(ready, id, waiting_ready) then to_ready(id) end
  elseif state == 'suspect' then
    local key = route_key(route, 'suspect')
    if not in_list(key, id, call('LLEN', key)) then
      call('RPUSH', key, id)
      repaired[#repaired + 1] = id
    end
  else
    repair_waiting(id, job[3] or '')
  end
end

for _, id in ipairs(call('ZRANGE', route_key(route, 'all'), 0, most - 1)) do repair(id) end
return repaired
