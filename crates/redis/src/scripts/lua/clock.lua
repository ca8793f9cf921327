-- Redis's own time, which stays the same for the whole run.
local own_time
local function nanoseconds(at)
  if at ~= 'now' then return parse(at) end
  if not own_time then
    local now = redis.call('TIME')
    own_time = parse(now[1] .. string_format('%06d', now[2]) .. '000')
  end
  return own_time
end

