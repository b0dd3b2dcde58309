-- Move waiting work of a route to another, oldest first, each job to the end of its lane there.
-- What is in flight stays, and so does what the other route already has.
-- Safe to repeat: a job that was moved is no longer found.
--
-- ARGV: old route, new route, 1 when the new one is ordered by lane, jobs to skip, most
-- Returns moved, skipped (they stay), 1 when more may be left.
local old, new, ordered = ARGV[1], ARGV[2], ARGV[3] == '1'
local from, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local moved, skipped = 0, 0

local function add(target, uid, job, stamp)
  local lane = ordered and call('HGET', update_key(uid), 'lane') or ''
  call('HSET', job_key(target), 'lane', lane, 'attempts', job[3] or 0)
  if job[4] then call('HSET', job_key(target), 'expires_ms', job[4]) end
  if job[5] then call('HSET', job_key(target), 'last_status', job[5], 'last_error', job[6] or '') end
  call('ZADD', route_key(new, 'all'), stamp, target)
  place(target, new, lane)
end

local function move(id)
  local job = call('HMGET', job_key(id), 'state', 'lane', 'attempts', 'expires_ms',
    'last_status', 'last_error')
  local uid = parts(id)
  local target = uid .. '/' .. new
  local taken = call('EXISTS', job_key(target)) == 1
  if not job[1] or job[1] == 'processing' or job[1] == 'dead' or taken then return false end
  local stamp = call('ZSCORE', route_key(old, 'all'), id)
  unplace(id, old)
  call('DEL', job_key(id))
  leave_lane(old, job[2], id)
  add_route_name(uid, new)
  add(target, uid, job, stamp)
  return true
end

local ids = call('ZRANGE', route_key(old, 'all'), from, from + most - 1)
for _, id in ipairs(ids) do
  if move(id) then moved = moved + 1 else skipped = skipped + 1 end
end
trim_ready(old, 2 * most)
if call('EXISTS', route_key(old, 'all')) == 0 then call('DEL', route_key(old, 'ready')) end
if moved > 0 then call('HSETNX', ROUTES, new, NOW) end
return {moved, skipped, #ids == most and 1 or 0}
