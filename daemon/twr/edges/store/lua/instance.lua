-- The heartbeat of a process under its instance's name; at start it takes the name over.
-- A process that finds another's nonce was replaced; a record that is gone (a store that lost
-- its data) is no rival and is written anew. A take-over that is carried out late, after another
-- one, is none.
--
-- ARGV: instance, nonce, boot id, pid, to take over the store's time before the call (else 0), routes…
-- Returns now, 1 when the name is ours, then name and last sign of life of each older process
-- under it that was not yet dismissed: nonce, heartbeat ms, boot id, pid.
local nonce, boot, pid = ARGV[2], ARGV[3], ARGV[4]
local key = P .. ':instance:' .. ARGV[1]
local asked = tonumber(ARGV[5])
local old = call('HMGET', key, 'nonce', 'boot_id', 'pid', 'heartbeat', 'since')
local ours = not old[1] or old[1] == nonce

if not ours and tonumber(old[5] or 0) <= asked and asked > 0 then
  call('HSET', key, 'old:' .. old[1], (old[4] or 0) .. ' ' .. (old[2] or '') .. ' ' .. (old[3] or ''))
  ours = true
end
if ours then
  if old[1] ~= nonce or not old[5] then call('HSET', key, 'since', NOW) end
  call('HSET', key, 'nonce', nonce, 'boot_id', boot, 'pid', pid, 'heartbeat', NOW)
  call('PEXPIRE', key, 2592000000)
  for n = 6, #ARGV do call('HSET', ROUTES, ARGV[n], NOW) end
elseif call('HEXISTS', key, 'old:' .. nonce) == 1 then
  call('HSET', key, 'old:' .. nonce, NOW .. ' ' .. boot .. ' ' .. pid)
end

local out = {NOW, ours and 1 or 0}
local fields = call('HGETALL', key)
for n = 1, #fields, 2 do
  if string.sub(fields[n], 1, 4) == 'old:' then
    local beat, its_boot, its_pid = string.match(fields[n + 1], '^(%S+) (%S*) (%S*)$')
    out[#out + 1] = {string.sub(fields[n], 5), beat or '0', its_boot or '', its_pid or ''}
  end
end
return out
