-- A dead letter starts anew at the end of its lane: no attempts, no expiry.
-- Safe to repeat: the second time there is no such dead letter.
--
-- ARGV: job id, route to deliver to, 1 when that route is ordered by lane
-- Returns replayed | missing | taken (that route already has the update).
local id, to, ordered = ARGV[1], ARGV[2], ARGV[3] == '1'
local job = call('HMGET', job_key(id), 'state', 'reason')
if job[1] ~= 'dead' then return 'missing' end
local target = parts(id) .. '/' .. to
if target ~= id and call('EXISTS', job_key(target)) == 1 then return 'taken' end

local uid = forget_dead(id, job[2])
add_route_name(uid, to)
local lane = ordered and call('HGET', update_key(uid), 'lane') or ''
call('HSET', job_key(target), 'lane', lane, 'attempts', 0, 'expires_ms', 0)
call('ZADD', route_key(to, 'all'), STAMP, target)
call('HSETNX', ROUTES, to, NOW)
place(target, to, lane)
return 'replayed'
