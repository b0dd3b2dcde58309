-- Requeue leases of an instance's processes that no longer live: a crash for each job.
-- Safe to repeat: a job that was requeued is no longer leased. Carried out late, when a newer
-- process has the name, it touches nothing: who lives then, the caller could not know.
--
-- ARGV: instance, most, nonces that live, the caller's first…
-- Returns how many were requeued, 1 when more may be left, ids that died as poison, damaged routes.
local owner, most = ARGV[1], tonumber(ARGV[2])
if call('HGET', P .. ':instance:' .. owner, 'nonce') ~= ARGV[3] then return {0, 0, {}, {}} end
local living = {}
for n = 3, #ARGV do living[ARGV[n]] = true end

local done, poison = 0, {}

local function recover(route)
  local from = 0
  local key = route_key(route, 'processing')
  while done < most do
    local ids = call('ZREVRANGE', key, from, from + 199)
    if #ids == 0 then return end
    for _, id in ipairs(ids) do
      local job = call('HMGET', job_key(id), 'state', 'owner', 'token')
      local lost = job[1] == 'processing' and job[2] == owner and not living[nonce_of(job[3])]
      if lost and done < most then
        if requeue(id, route, true) then poison[#poison + 1] = id end
        done = done + 1
      else
        from = from + 1
      end
    end
  end
end

local damaged = each_route(recover)
if done < most then
  for _, field in ipairs(call('HKEYS', P .. ':instance:' .. owner)) do
    local its = string.match(field, '^old:(.*)$')
    if its and not living[its] then call('HDEL', P .. ':instance:' .. owner, field) end
  end
end
return {done, done < most and 0 or 1, poison, damaged}
