-- Requeue leases that ran out, of any instance but the caller's own process (which knows what it
-- holds), and make dead letters of what expired, wherever it waits.
-- Safe to repeat: each job leaves the place where it was found.
--
-- ARGV: nonce, most
-- Returns leases that ran out, 1 when more may be left, ids that expired, ids that died as poison,
-- damaged routes.
local nonce, most = ARGV[1], tonumber(ARGV[2])
local left, reaped, expired, poison = most, 0, {}, {}

-- An owner that still beats was cut off, not crashed.
local function crashed(owner, its)
  local key = P .. ':instance:' .. (owner or '')
  local record = call('HMGET', key, 'nonce', 'heartbeat', 'old:' .. (its or ''))
  local beat = record[1] == its and record[2] or string.match(record[3] or '', '^%S+')
  return NOW - tonumber(beat or 0) > 5000
end

-- Returns true when the lease is the caller's own, and so stays.
local function reap(id, route)
  local job = call('HMGET', job_key(id), 'state', 'owner', 'token')
  local its = nonce_of(job[3])
  if job[1] ~= 'processing' then
    call('ZREM', route_key(route, 'processing'), id)
    return false
  end
  if its == nonce then return true end
  if requeue(id, route, crashed(job[2], its)) then poison[#poison + 1] = id end
  reaped = reaped + 1
  return false
end

local function reap_route(route)
  local key, ours = route_key(route, 'processing'), 0
  while left > 0 do
    local id = call('ZRANGEBYSCORE', key, '-inf', NOW, 'LIMIT', ours, 1)[1]
    if not id then return end
    if reap(id, route) then ours = ours + 1 else left = left - 1 end
  end
end

-- Returns true when a delivery of the update is in flight: its settle decides.
local function expire(uid, touched)
  local flying = false
  for route in string.gmatch(call('HGET', update_key(uid), 'routes') or '', '%S+') do
    local id = uid .. '/' .. route
    local job = call('HMGET', job_key(id), 'state', 'lane', 'expires_ms')
    local mortal = job[1] and job[1] ~= 'dead' and job[3] ~= '0'
    if mortal and job[1] == 'processing' then
      flying = true
    elseif mortal then
      bury(id, route, job[2], 'expired')
      expired[#expired + 1] = id
      touched[route] = true
    end
  end
  return flying
end

local damaged = each_route(reap_route)

local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', NOW, 'LIMIT', 0, most)
local touched = {}
for _, uid in ipairs(due) do
  local done, flying = pcall(expire, uid, touched)
  if flying or not done then
    call('ZADD', EXPIRY, NOW + 2000, uid)
  else
    call('ZREM', EXPIRY, uid)
  end
end
for route in pairs(touched) do pcall(trim_ready, route, 2 * most) end
local more = left == 0 or #due == most
return {reaped, more and 1 or 0, expired, poison, damaged}
