-- Whole numbers from 0 up, of any size, exact. Lua's own numbers are doubles, which are exact below 2^53. A number
-- below EXACT is a double. Any other number is a table of digits in base 10^7, the lowest first, and the highest not 0.
-- Products of two such digits are exact in doubles, and each digit is seven decimal digits.

local BASE, WIDTH = 1e7, 7
local SQUARE = BASE ^ 2
local EXACT, EXACT_TOP_DIGIT, EXACT_LENGTH = 90 * SQUARE, 90, 15

-- Looked up once, instead of on each use.
local type, tonumber, floor, string_format, sub = type, tonumber, math.floor, string.format, string.sub

local function digits(number)
  if type(number) == 'table' then return number end
  if number < BASE then return { number } end
  local low = number % BASE
  number = (number - low) / BASE
  if number < BASE then return { low, number } end
  local middle = number % BASE
  return { low, middle, (number - middle) / BASE }
end

-- Returns the number with these digits. The highest may be 0.
local function of_digits(digits)
  while digits[#digits] == 0 do digits[#digits] = nil end
  if #digits > 3 or (#digits == 3 and digits[3] >= EXACT_TOP_DIGIT) then return digits end
  return (digits[1] or 0) + (digits[2] or 0) * BASE + (digits[3] or 0) * SQUARE
end

local function parse(text)
  if #text <= EXACT_LENGTH then return tonumber(text) end
  if #text <= 3 * WIDTH then
    return of_digits({ tonumber(sub(text, -7)), tonumber(sub(text, -14, -8)), tonumber(sub(text, 1, -15)) })
  end
  local digits = {}
  for last = #text, 1, -WIDTH do
    digits[#digits + 1] = tonumber(sub(text, last - WIDTH + 1 > 1 and last - WIDTH + 1 or 1, last))
  end
  return of_digits(digits)
end

local function format(number)
  if type(number) == 'number' then return string_format('%d', number) end
  if #number == 3 then return string_format('%d%07d%07d', number[3], number[2], number[1]) end
  local text = string_format('%d', number[#number])
  for place = #number - 1, 1, -1 do text = text .. string_format('%07d', number[place]) end
  return text
end

local function less(a, b)
  if type(a) == 'number' then return type(b) == 'table' or a < b end
  if type(b) == 'number' then return false end
  if #a ~= #b then return #a < #b end
  for place = #a, 1, -1 do
    if a[place] ~= b[place] then return a[place] < b[place] end
  end
  return false
end

local function min(a, b) return less(b, a) and b or a end

local function max(a, b) return less(a, b) and b or a end

local function plus(a, b)
  if type(a) == 'number' then a, b = b, a end
  if type(a) == 'number' then
    if a + b < EXACT then return a + b end
    a = digits(a)
  end
  if type(b) == 'number' and #a == 3 then
    -- Usually, these are a time and a span.
    local sum = a[1] + b
    local low = sum % BASE
    sum = a[2] + (sum - low) / BASE
    local middle = sum % BASE
    local high = a[3] + (sum - middle) / BASE
    return high < BASE and { low, middle, high } or { low, middle, high - BASE, 1 }
  end
  b = digits(b)
  local sum, carry = {}, 0
  for place = 1, math.max(#a, #b) do
    local digit = (a[place] or 0) + (b[place] or 0) + carry
    carry = digit >= BASE and 1 or 0
    sum[place] = digit - carry * BASE
  end
  sum[#sum + 1] = carry
  return of_digits(sum)
end

-- Returns a - b, or 0 if b is greater.
local function minus(a, b)
  if type(a) == 'number' then return type(b) == 'number' and a > b and a - b or 0 end
  b = digits(b)
  if #a == 3 and #b <= 3 then
    local low, middle, high = a[1] - b[1], a[2] - (b[2] or 0), a[3] - (b[3] or 0)
    if low < 0 then low, middle = low + BASE, middle - 1 end
    if middle < 0 then middle, high = middle + BASE, high - 1 end
    if high < 0 then return 0 end
    return high < EXACT_TOP_DIGIT and high * SQUARE + middle * BASE + low or { low, middle, high }
  end
  if less(a, b) then return 0 end
  local difference, borrowed = {}, 0
  for place = 1, #a do
    local digit = a[place] - (b[place] or 0) - borrowed
    borrowed = digit < 0 and 1 or 0
    difference[place] = digit + borrowed * BASE
  end
  return of_digits(difference)
end

local function times(a, b)
  if type(a) == 'number' and type(b) == 'number' and a * b < EXACT then return a * b end
  a, b = digits(a), digits(b)
  local product = {}
  for place = 1, #a + #b do product[place] = 0 end
  for i = 1, #a do
    local carry = 0
    for j = 1, #b do
      local sum = product[i + j - 1] + a[i] * b[j] + carry
      local digit = sum % BASE
      product[i + j - 1] = digit
      carry = (sum - digit) / BASE
    end
    product[i + #b] = carry
  end
  return of_digits(product)
end

local function double(number)
  if type(number) == 'number' then return number end
  local sum = 0
  for place = #number, 1, -1 do sum = sum * BASE + number[place] end
  return sum
end

-- Returns the quotient and the remainder of a / b. `b` is not 0.
local function divide(a, b)
  if type(a) == 'number' and type(b) == 'number' then
    local quotient = floor(a / b)
    return quotient, a - quotient * b
  end
  a = digits(a)
  local quotient, rest = {}, 0
  for place = #a, 1, -1 do
    rest = plus(times(rest, BASE), a[place])
    -- The quotient of doubles, which may be off by one.
    local digit = floor(double(rest) / double(b))
    local part = times(b, digit)
    if less(rest, part) then digit, part = digit - 1, minus(part, b) end
    rest = minus(rest, part)
    if not less(rest, b) then digit, rest = digit + 1, minus(rest, b) end
    quotient[place] = digit
  end
  return of_digits(quotient), rest
end

local function divide_up(a, b)
  local quotient, rest = divide(a, b)
  return rest == 0 and quotient or plus(quotient, 1)
end

-- The largest number of 64 bits.
local LARGEST = { 9551615, 4407370, 184467 }

local function saturating(number) return min(number, LARGEST) end

-- Returns the time from `at` until `span` after `start`: `start + span - at`. The order keeps most results within doubles.
local function time_between(at, start, span)
  local passed = minus(at, start)
  if passed == 0 then return saturating(plus(minus(start, at), span)) end
  return saturating(minus(span, passed))
end

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
