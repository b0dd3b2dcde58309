-- One turn of a delivery loop: settle what ended, then claim what may start. Settles come first,
-- so that a slot and a lane that they free can be claimed in the same step.
-- A crash before it leaves the leases (they expire or are recovered); a crash after it leaves
-- leases that nobody works on, which the owner's next process recovers.
--
-- ARGV: instance, nonce, most bytes of bodies, settles, claims;
--   per settle: kind (delivered | retry | release | dead), job id, token, argument, status, error, answer;
--     argument: retry: delay ms; release: front | back; dead: reason
--   per claim:  route, free slots, lease ms, 1 to take a suspect
-- Returns now, then per settle 1 or 0 (refused: the token no longer holds), then per claim a
-- list: ready left, suspects left, next due ms or -1, expired ids, ids whose body the store has
-- lost, and 6 values per job:
-- id, token, attempts, accepted ms, expires ms (0 = never), body.
local owner, nonce, most_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3])
local settles, claims = tonumber(ARGV[4]), tonumber(ARGV[5])

local HELD = {processing = true, ready = true, suspect = true}

-- A failed attempt was made and its process lived: it clears the job of what crashes it was near.
local function retry(id, route, first)
  local key = job_key(id)
  local due = NOW + tonumber(ARGV[first + 3])
  call('ZREM', route_key(route, 'processing'), id)
  call('HSET', key, 'state', 'delayed', 'due_ms', due,
    'last_status', ARGV[first + 4], 'last_error', ARGV[first + 5])
  call('HINCRBY', key, 'attempts', 1)
  call('HDEL', key, 'token', 'owner', 'crashes')
  call('ZADD', route_key(route, 'delayed'), due, id)
end

local function release(id, route, state, first)
  if state ~= 'processing' then return end
  local key = job_key(id)
  call('HDEL', key, 'token', 'owner')
  if ARGV[first + 4] ~= '' or ARGV[first + 5] ~= '' then
    call('HSET', key, 'last_status', ARGV[first + 4], 'last_error', ARGV[first + 5])
  end
  give_back(id, route, ARGV[first + 3] == 'front' and 'LPUSH' or 'RPUSH')
end

local function settle(first)
  local kind, id = ARGV[first], ARGV[first + 1]
  local key = job_key(id)
  local job = call('HMGET', key, 'state', 'token', 'lane')
  if not HELD[job[1]] or job[2] ~= ARGV[first + 2] then return 0 end
  local uid, route = parts(id)
  -- A lease that ran out, but that nobody has claimed since: the settle of its holder stands.
  if job[1] ~= 'processing' and kind ~= 'release' then
    call('LREM', route_key(route, job[1]), 1, id)
  end
  if kind == 'delivered' then
    finish(id, uid, route, job[3])
  elseif kind == 'retry' then
    retry(id, route, first)
  elseif kind == 'release' then
    release(id, route, job[1], first)
  else
    call('HINCRBY', key, 'attempts', 1)
    call('HSET', key, 'last_status', ARGV[first + 4], 'last_error', ARGV[first + 5],
      'answer', ARGV[first + 6])
    bury(id, route, job[3], ARGV[first + 3])
  end
  return 1
end

local function promote(route, most)
  local delayed = route_key(route, 'delayed')
  for _, id in ipairs(call('ZRANGEBYSCORE', delayed, '-inf', NOW, 'LIMIT', 0, most)) do
    call('ZREM', delayed, id)
    if call('HGET', job_key(id), 'state') == 'delayed' then
      call('HSET', job_key(id), 'state', 'ready')
      call('RPUSH', route_key(route, 'ready'), id)
    end
  end
end

local bytes = 0
-- No step of a claim looks at more ids; what is left is told as ready.
local MOST_TRIES = 1000

-- Lease one job into out. An id whose job is gone or elsewhere is stale and skipped.
local function take(id, from, route, lease, out)
  local key = job_key(id)
  local job = call('HMGET', key, 'state', 'attempts', 'claims', 'expires_ms', 'lane')
  if job[1] ~= from then return end
  local uid = parts(id)
  local update = call('HMGET', update_key(uid), 'body', 'accepted_ms', 'expires_ms')
  if not update[1] then
    finish(id, uid, route, job[5])
    table.insert(out[5], id)
    return
  end
  local expires = tonumber(job[4] or update[3])
  if expires > 0 and expires <= NOW then
    bury(id, route, job[5], 'expired')
    table.insert(out[4], id)
    return
  end
  local claim = tonumber(job[3] or 0) + 1
  local token = token_of(nonce, claim)
  call('HSET', key, 'state', 'processing', 'claims', claim, 'token', token, 'owner', owner,
    'due_ms', NOW + lease)
  call('ZADD', route_key(route, 'processing'), NOW + lease, id)
  bytes = bytes + #update[1]
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = id, token, job[2] or '0'
  out[n + 4], out[n + 5], out[n + 6] = update[2], expires, update[1]
end

local function claim(first)
  local route, slots, lease = ARGV[first], tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local from = ARGV[first + 3] == '1' and 'suspect' or 'ready'
  local ready, suspect = route_key(route, 'ready'), route_key(route, 'suspect')
  local out = {0, 0, -1, {}, {}}
  local tries = math.min(slots * 2 + 16, MOST_TRIES)
  if slots > 0 then promote(route, tries) end
  while #out - 5 < slots * 6 and tries > 0 and bytes < most_bytes do
    local id = call('LPOP', route_key(route, from))
    if not id then break end
    take(id, from, route, lease, out)
    tries = tries - 1
  end
  out[1], out[2] = call('LLEN', ready), call('LLEN', suspect)
  local due = call('ZRANGE', route_key(route, 'delayed'), 0, 0, 'WITHSCORES')
  if due[2] then out[3] = tonumber(due[2]) end
  return out
end

local answer = {NOW}
local at = 6
for _ = 1, settles do
  answer[#answer + 1] = settle(at)
  at = at + 7
end
for _ = 1, claims do
  answer[#answer + 1] = claim(at)
  at = at + 4
end
return answer
