-- Delete dead letters for good, with the body when nothing else needs it.
-- Safe to repeat: what is gone is not counted again.
--
-- ARGV: job ids…
-- Returns how many were dropped.
local dropped = 0
for _, id in ipairs(ARGV) do
  if erase(id) then dropped = dropped + 1 end
end
return dropped
