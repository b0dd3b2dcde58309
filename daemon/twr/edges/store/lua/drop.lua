-- Delete dead letters for good, with the body when nothing else needs it.
-- Safe to repeat: what is gone is not counted again.
--
-- ARGV: job ids…
-- Returns how many were dropped.
local dropped = 0
for _, id in ipairs(ARGV) do
  local job = call('HMGET', job_key(id), 'state', 'reason')
  if job[1] == 'dead' then
    local uid, route = parts(id)
    call('ZREM', DEAD, id)
    call('HINCRBY', COUNTS, route .. '/' .. job[2], -1)
    call('DEL', job_key(id))
    drop_reference(uid)
    dropped = dropped + 1
  else
    call('ZREM', DEAD, id)
  end
end
return dropped
