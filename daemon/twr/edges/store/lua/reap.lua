-- Requeue leases that ran out, of any instance but the caller's own process (which knows what it
-- holds), and make dead letters of what expired, wherever it waits.
-- Safe to repeat: each job leaves the place where it was found.
--
-- ARGV: nonce, most
-- Returns leases that ran out, 1 when more may be left, ids that expired, ids that died as poison.
local nonce, most = ARGV[1], tonumber(ARGV[2])
local reaped, expired, poison = 0, {}, {}
local more = 0

-- An owner that still beats was cut off, not crashed.
local function crashed(owner, its)
  local record = call('HMGET', P .. ':instance:' .. (owner or ''), 'nonce', 'heartbeat')
  return record[1] ~= its or NOW - tonumber(record[2] or 0) > 5000
end

local function reap(route)
  local key = route_key(route, 'processing')
  local ids = call('ZRANGEBYSCORE', key, '-inf', NOW, 'LIMIT', 0, most)
  if #ids == most then more = 1 end
  for _, id in ipairs(ids) do
    local job = call('HMGET', job_key(id), 'state', 'owner', 'token')
    local its = nonce_of(job[3])
    if job[1] ~= 'processing' then
      call('ZREM', key, id)
    elseif its ~= nonce then
      if requeue(id, route, crashed(job[2], its)) then poison[#poison + 1] = id end
      reaped = reaped + 1
    end
  end
end

-- The oldest stand at the front of the ready list: drop what is dead there.
local function trim_ready(route)
  local key = route_key(route, 'ready')
  for _ = 1, most do
    local id = call('LINDEX', key, 0)
    if not id then return end
    if call('HGET', job_key(id), 'state') == 'ready' then return end
    call('LPOP', key)
  end
end

-- Returns true when a delivery of the update is in flight: its settle decides.
local function expire(uid, touched)
  local flying = false
  for route in string.gmatch(call('HGET', update_key(uid), 'routes') or '', '%S+') do
    local id = uid .. '/' .. route
    local job = call('HMGET', job_key(id), 'state', 'lane', 'expires_ms')
    if job[1] == 'processing' then
      flying = true
    elseif job[1] and job[1] ~= 'dead' and job[3] ~= '0' then
      bury(id, route, job[2], 'expired')
      expired[#expired + 1] = id
      touched[route] = true
    end
  end
  return flying
end

for _, route in ipairs(call('HKEYS', ROUTES)) do reap(route) end

local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', NOW, 'LIMIT', 0, most)
if #due == most then more = 1 end
local touched = {}
for _, uid in ipairs(due) do
  if expire(uid, touched) then
    call('ZADD', EXPIRY, NOW + 2000, uid)
  else
    call('ZREM', EXPIRY, uid)
  end
end
for route in pairs(touched) do trim_ready(route) end
return {reaped, more, expired, poison}
