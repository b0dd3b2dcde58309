-- Store updates and their deliveries, each once. All of a call's updates in one atomic step.
-- Refused as a whole by a full server, before anything is written (no allow-oom).
-- A crash before it leaves nothing, a crash after it leaves everything.
--
-- ARGV: dedup ttl ms, instance, nonce, offers, updates;
--   per offer:  route, free slots, lease ms       (a job that could start at once is leased here)
--   per update: update id, bitmap, bit, type, lane, expires after ms, body, routes;
--     per route: name, 1 when ordered by lane, most waiting
-- Returns now, then per update -1 (seen before) or the number of deliveries; as one text followed
-- by the numbers of the routes, from 1, whose job was leased, and negative those whose job can be
-- claimed now. The others wait behind one of their lane, or overflowed.
local ttl, owner, nonce = ARGV[1], ARGV[2], ARGV[3]
local at = 5
local slots, leases, known = {}, {}, {}
-- What the updates of one call need not ask again: routes' counts, routes with something ready,
-- bitmaps whose time is renewed.
local counts, some_ready, renewed = {}, {}, {}
local stamp = STAMP
for _ = 1, tonumber(ARGV[4]) do
  slots[ARGV[at + 1]], leases[ARGV[at + 1]] = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  at = at + 3
end

-- Old dead letters of a returning update id move aside, body and all, under <id>~<n>.
local function move_aside(uid)
  local n = 1
  while call('EXISTS', update_key(uid .. '~' .. n)) == 1 do n = n + 1 end
  local aside = uid .. '~' .. n
  for route in string.gmatch(call('HGET', update_key(uid), 'routes') or '', '%S+') do
    local id, other = uid .. '/' .. route, aside .. '/' .. route
    if call('EXISTS', job_key(id)) == 1 then
      call('RENAME', job_key(id), job_key(other))
      call('ZADD', DEAD, call('ZSCORE', DEAD, id) or NOW, other)
      call('ZREM', DEAD, id)
    end
  end
  call('RENAME', update_key(uid), update_key(aside))
  call('ZREM', EXPIRY, uid)
end

-- An update that came to no end, because a key had the wrong type, is taken back: it comes again.
local function take_back(uid)
  for route in string.gmatch(call('HGET', update_key(uid), 'routes'), '%S+') do
    local id = uid .. '/' .. route
    local job = call('HMGET', job_key(id), 'state', 'reason', 'lane')
    if job[1] == 'dead' then forget_dead(id, job[2]) end
    unplace(id, route)
    call('DEL', job_key(id))
    leave_lane(route, job[3], id)
  end
  call('DEL', update_key(uid))
  counts, some_ready = {}, {}
end

local function mark_seen(bitmap, bit)
  call('SETBIT', bitmap, bit, 1)
  if not renewed[bitmap] then call('PEXPIRE', bitmap, ttl) end
  renewed[bitmap] = true
end

local function know_route(route)
  if not known[route] then call('HSETNX', ROUTES, route, NOW) end
  known[route] = true
end

local function has_live_jobs(uid)
  for route in string.gmatch(call('HGET', update_key(uid), 'routes') or '', '%S+') do
    local state = call('HGET', job_key(uid .. '/' .. route), 'state')
    if state and state ~= 'dead' then return true end
  end
  return false
end

local function may_lease(route)
  if (slots[route] or 0) == 0 then return false end
  if some_ready[route] == nil then
    some_ready[route] = call('EXISTS', route_key(route, 'ready')) == 1
  end
  return not some_ready[route]
end

local function lease_to_caller(id, route)
  slots[route] = slots[route] - 1
  local deadline = NOW + leases[route]
  call('HSET', job_key(id), 'state', 'processing', 'claims', 1,
    'token', token_of(nonce, 1), 'owner', owner, 'due_ms', deadline)
  call('ZADD', route_key(route, 'processing'), deadline, id)
  return 'processing'
end

-- Returns the state of the job: processing when it was leased to the caller.
local function add_job(uid, route, lane, most)
  local id = uid .. '/' .. route
  local key = job_key(id)
  know_route(route)
  counts[route] = counts[route] or call('ZCARD', route_key(route, 'all'))
  if counts[route] >= most then
    call('HSET', key, 'lane', '', 'attempts', 0)
    bury(id, route, '', 'overflow')
    return 'dead'
  end
  call('ZADD', route_key(route, 'all'), stamp, id)
  counts[route] = counts[route] + 1
  call('HSET', key, 'lane', lane, 'attempts', 0, 'state', 'waiting')
  if not join_lane(route, lane, id) then return 'waiting' end
  if may_lease(route) then return lease_to_caller(id, route) end
  some_ready[route] = true
  call('RPUSH', route_key(route, 'ready'), id)
  call('HSET', key, 'state', 'ready')
  return 'ready'
end

local SIGN = {processing = '', ready = '-'}

local function accept(first)
  local uid, bitmap, bit = ARGV[first], P .. ':seen:' .. ARGV[first + 1], ARGV[first + 2]
  local routes = tonumber(ARGV[first + 7])
  if call('GETBIT', bitmap, bit) == 1 then return -1 end
  if call('EXISTS', update_key(uid)) == 1 then
    if call('HEXISTS', update_key(uid), 'refs') == 0 then
      take_back(uid)
    elseif has_live_jobs(uid) then
      mark_seen(bitmap, bit)
      return -1
    else
      move_aside(uid)
    end
  end
  -- One microsecond each is less than each takes, so that the next call's are later.
  stamp = stamp + 0.001
  local names, told = {}, {routes}
  for n = 1, routes do names[n] = ARGV[first + 5 + 3 * n] end
  local expires = NOW + tonumber(ARGV[first + 5])
  call('HSET', update_key(uid), 'body', ARGV[first + 6], 'type', ARGV[first + 3],
    'lane', ARGV[first + 4], 'accepted_ms', NOW, 'expires_ms', expires,
    'routes', table.concat(names, ' '))
  call('ZADD', EXPIRY, expires, uid)
  for n = 1, routes do
    local arg = first + 5 + 3 * n
    local lane = ARGV[arg + 1] == '1' and ARGV[first + 4] or ''
    local sign = SIGN[add_job(uid, names[n], lane, tonumber(ARGV[arg + 2]))]
    if sign then told[#told + 1] = sign .. n end
  end
  call('HSET', update_key(uid), 'refs', routes)
  mark_seen(bitmap, bit)
  return #told > 1 and table.concat(told, ' ') or routes
end

local out = {NOW}
local first = at + 1
for n = 1, tonumber(ARGV[5]) do
  out[n + 1] = accept(first)
  first = first + 8 + 3 * tonumber(ARGV[first + 7])
end
return out
