-- Put in front of every script. KEYS[1] is the hash tag that all keys of a bot share.
local P = KEYS[1]
local call = redis.call

local clock = call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- The same with its fraction: what came in one millisecond keeps its order.
local STAMP = clock[1] * 1000 + clock[2] / 1000

local function job_key(id) return P .. ':job:' .. id end
local function update_key(uid) return P .. ':update:' .. uid end
local function route_key(route, name) return P .. ':route:' .. route .. ':' .. name end
local DEAD, COUNTS, EXPIRY = P .. ':dead-letter', P .. ':dead-letter:counts', P .. ':expiry'
local DIED, ROUTES = P .. ':died', P .. ':routes'

-- Calls what is given with each known route; the names of those where it failed, because a key has
-- the wrong type: they stop no other.
local function each_route(act)
  local damaged = {}
  for _, route in ipairs(call('HKEYS', ROUTES)) do
    if not pcall(act, route) then damaged[#damaged + 1] = route end
  end
  return damaged
end

local function parts(id)
  local slash = string.find(id, '/', 1, true)
  return string.sub(id, 1, slash - 1), string.sub(id, slash + 1)
end

-- A token is <nonce>:<claim>.<ms>: no two leases of one id share it, even when the id was settled
-- and came back in between, and it tells which process holds the lease.
local function token_of(nonce, claim) return nonce .. ':' .. claim .. '.' .. NOW end
local function nonce_of(token) return token and string.match(token, '^(.*):') end
local function leased_ms(token) return tonumber(string.match(token, '%.(%d+)$') or 0) end

-- The first job of a lane that still waits there becomes ready.
local function advance(route, lane)
  local key = route_key(route, 'lane:' .. lane)
  while true do
    local head = call('LINDEX', key, 0)
    if not head then return end
    local state = call('HGET', job_key(head), 'state')
    if state == 'waiting' then
      call('HSET', job_key(head), 'state', 'ready')
      call('RPUSH', route_key(route, 'ready'), head)
      return
    end
    if state and state ~= 'dead' then return end
    call('LPOP', key)
  end
end

local function leave_lane(route, lane, id)
  if not lane or lane == '' then return end
  call('LREM', route_key(route, 'lane:' .. lane), 1, id)
  advance(route, lane)
end

-- Put a job at the end of its lane; true when it is the lane's only one, and so may be ready.
local function join_lane(route, lane, id)
  return lane == '' or call('RPUSH', route_key(route, 'lane:' .. lane), id) == 1
end

-- A job that nobody holds joins its lane; the caller has written all of it but the state.
local function place(id, route, lane)
  local state = 'waiting'
  if join_lane(route, lane, id) then
    state = 'ready'
    call('RPUSH', route_key(route, 'ready'), id)
  end
  call('HSET', job_key(id), 'state', state)
end

local function drop_reference(uid)
  if call('HINCRBY', update_key(uid), 'refs', -1) <= 0 then
    call('DEL', update_key(uid))
    call('ZREM', EXPIRY, uid)
  end
end

-- Take a job out of every place but the ready list, whose stale ids are skipped by whoever pops them.
local function unplace(id, route)
  call('ZREM', route_key(route, 'processing'), id)
  call('ZREM', route_key(route, 'delayed'), id)
  call('ZREM', route_key(route, 'all'), id)
  call('LREM', route_key(route, 'suspect'), 0, id)
end

-- The oldest stand at the front of the ready list: drop what is stale there.
local function trim_ready(route, most)
  local key = route_key(route, 'ready')
  for _ = 1, most do
    local id = call('LINDEX', key, 0)
    if not id or call('HGET', job_key(id), 'state') == 'ready' then return end
    call('LPOP', key)
  end
end

local function add_route_name(uid, route)
  local names = call('HGET', update_key(uid), 'routes') or ''
  if not string.find(' ' .. names .. ' ', ' ' .. route .. ' ', 1, true) then
    call('HSET', update_key(uid), 'routes', names .. ' ' .. route)
  end
end

local function finish(id, uid, route, lane)
  unplace(id, route)
  call('DEL', job_key(id))
  leave_lane(route, lane, id)
  drop_reference(uid)
end

local function bury(id, route, lane, reason)
  unplace(id, route)
  call('HSET', job_key(id), 'state', 'dead', 'reason', reason, 'died_ms', NOW)
  call('HDEL', job_key(id), 'token', 'owner', 'due_ms')
  call('ZADD', DEAD, NOW, id)
  call('HINCRBY', COUNTS, route .. '/' .. reason, 1)
  call('HINCRBY', DIED, route .. '/' .. reason, 1)
  leave_lane(route, lane, id)
end

-- Where a leased job goes when it is given back: two crashes make it wait to be delivered alone.
local function give_back(id, route, push)
  local key = job_key(id)
  local state = tonumber(call('HGET', key, 'crashes') or 0) < 2 and 'ready' or 'suspect'
  call('ZREM', route_key(route, 'processing'), id)
  call('HSET', key, 'state', state)
  call(push, route_key(route, state), id)
end

-- A lease ends without its holder, whose token holds until the next claim. `crashed`: the process
-- died with the job in flight; the third such crash is poison. Returns true when the job is dead.
local function requeue(id, route, crashed)
  if crashed and call('HINCRBY', job_key(id), 'crashes', 1) >= 3 then
    bury(id, route, call('HGET', job_key(id), 'lane'), 'poison')
    return true
  end
  give_back(id, route, 'LPUSH')
  return false
end

local function forget_dead(id, reason)
  local uid, route = parts(id)
  call('ZREM', DEAD, id)
  local field = route .. '/' .. reason
  if call('HINCRBY', COUNTS, field, -1) <= 0 then call('HDEL', COUNTS, field) end
  call('DEL', job_key(id))
  return uid, route
end

-- Delete a dead letter for good, with the body when nothing else needs it.
local function erase(id)
  local job = call('HMGET', job_key(id), 'state', 'reason')
  if job[1] == 'dead' then
    drop_reference((forget_dead(id, job[2])))
    return true
  end
  call('ZREM', DEAD, id)
  return false
end
