-- Requeue leases under an instance's name that nobody works on any more: those of its dead
-- processes (a crash for each job), and those of the calling process that it does not hold
-- (claims whose answer was lost: no crash).
-- Safe to repeat: a job that was requeued is no longer leased.
--
-- ARGV: instance, nonce, most, living, held, nonces that live…, job ids held…
-- Returns how many were requeued, 1 when more may be left, ids that died as poison.
local owner, nonce, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local living, held = {}, {}
for n = 1, tonumber(ARGV[4]) do living[ARGV[5 + n]] = true end
for n = 1, tonumber(ARGV[5]) do held[ARGV[5 + tonumber(ARGV[4]) + n]] = true end

local done, poison = 0, {}

local function recover(route)
  local from = 0
  local key = route_key(route, 'processing')
  while done < most do
    local ids = call('ZREVRANGE', key, from, from + 199)
    if #ids == 0 then return end
    for _, id in ipairs(ids) do
      local job = call('HMGET', job_key(id), 'owner', 'token')
      local its = nonce_of(job[2])
      local lost = job[1] == owner and not living[its] and not (its == nonce and held[id])
      if lost and done < most then
        if requeue(id, route, its ~= nonce) then poison[#poison + 1] = id end
        done = done + 1
      else
        from = from + 1
      end
    end
  end
end

for _, route in ipairs(call('HKEYS', ROUTES)) do recover(route) end
if done < most then
  for _, field in ipairs(call('HKEYS', P .. ':instance:' .. owner)) do
    local its = string.match(field, '^old:(.*)$')
    if its and not living[its] then call('HDEL', P .. ':instance:' .. owner, field) end
  end
end
return {done, done < most and 0 or 1, poison}
