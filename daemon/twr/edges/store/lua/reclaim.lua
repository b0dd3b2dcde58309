-- Requeue the calling process's own leases that it does not hold: claims whose answer was lost.
-- No crash is counted. The caller has no claim under way meanwhile; carried out late, after it has
-- given up waiting, this touches nothing that was leased since. Safe to repeat.
--
-- ARGV: nonce, the store's time before the call, job ids held…
-- Returns the ids that were requeued.
local nonce, asked = ARGV[1], tonumber(ARGV[2])
local held = {}
for n = 3, #ARGV do held[ARGV[n]] = true end

local found = {}

local function reclaim(id, route)
  local job = call('HMGET', job_key(id), 'state', 'token')
  if job[1] ~= 'processing' or nonce_of(job[2]) ~= nonce then return end
  if leased_ms(job[2]) > asked then return end
  requeue(id, route, false)
  found[#found + 1] = id
end

each_route(function(route)
  for _, id in ipairs(call('ZREVRANGE', route_key(route, 'processing'), 0, -1)) do
    if not held[id] then reclaim(id, route) end
  end
end)
return found
