-- Requeue the calling process's own leases that it does not hold: claims whose answer was lost.
-- No crash is counted. The caller has no claim under way meanwhile. Safe to repeat.
--
-- ARGV: nonce, job ids held…
-- Returns the ids that were requeued.
local nonce = ARGV[1]
local held = {}
for n = 2, #ARGV do held[ARGV[n]] = true end

local found = {}

local function reclaim(id, route)
  local job = call('HMGET', job_key(id), 'state', 'token')
  if job[1] ~= 'processing' or nonce_of(job[2]) ~= nonce then return end
  requeue(id, route, false)
  found[#found + 1] = id
end

for _, route in ipairs(call('HKEYS', ROUTES)) do
  for _, id in ipairs(call('ZREVRANGE', route_key(route, 'processing'), 0, -1)) do
    if not held[id] then reclaim(id, route) end
  end
end
return found
