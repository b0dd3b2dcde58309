-- Put in front of every script. KEYS[1] is the hash tag that all keys of a bot share.
local P = KEYS[1]
local call = redis.call

local clock = call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function job_key(id) return P .. ':job:' .. id end
local function update_key(uid) return P .. ':update:' .. uid end
local function route_key(route, name) return P .. ':route:' .. route .. ':' .. name end
local DEAD, COUNTS, EXPIRY = P .. ':dead-letter', P .. ':dead-letter:counts', P .. ':expiry'
local ROUTES = P .. ':routes'

local function parts(id)
  local slash = string.find(id, '/', 1, true)
  return string.sub(id, 1, slash - 1), string.sub(id, slash + 1)
end

-- Which process holds a token: tokens are <nonce>:<claim>.
local function nonce_of(token) return token and string.match(token, '^(.*):') end

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
  leave_lane(route, lane, id)
end

-- A leased job goes back. `crashed`: its process died with it in flight; after two such
-- crashes it waits to be delivered alone, after a third it is poison. Returns true when dead.
local function requeue(id, route, crashed)
  call('ZREM', route_key(route, 'processing'), id)
  local key = job_key(id)
  local crashes = crashed and call('HINCRBY', key, 'crashes', 1) or 0
  if crashes >= 3 then
    bury(id, route, call('HGET', key, 'lane'), 'poison')
    return true
  end
  if crashes == 2 then
    call('HSET', key, 'state', 'suspect')
    call('RPUSH', route_key(route, 'suspect'), id)
  else
    call('HSET', key, 'state', 'ready')
    call('LPUSH', route_key(route, 'ready'), id)
  end
  return false
end
