-- Asks that are answered once: see algorithm/once.rs. What is remembered of each has a key of its own:
-- "fingerprint until_ns answered outcome", or `held` where another one that it belongs with denied it.

local function read_answer(text)
  local fingerprint, last, stage, outcome = text:match('^(%d+) (%d+) (%a+) (%d [%d%- ]+)$')
  if stage ~= 'answered' and stage ~= 'held' then return nil end
  return { fingerprint = fingerprint, last = parse(last), is_held = stage == 'held', outcome = outcome }
end

local function remember_answer(fingerprint, stage, text, at)
  local last = saturating(plus(at, REMEMBERED_NS))
  remember(string_format('%s %s %s %s', fingerprint, format(last), stage, text), minus(last, at))
end

-- As `decide`. `more` is " once fingerprint"; or " try fingerprint", which tells what that would answer; or " hold fingerprint",
-- for one that is allowed while another one that it belongs with denies.
local function ask_once(state, ask, more)
  local mode, fingerprint = more:match('^ (%a+) (%d+)$')
  local record, refusal = next_record(ask.at, read_answer)
  if refusal then return nil, refusal end
  if record and record.fingerprint ~= fingerprint then return told(look(state, ask.at), 'different') end
  if record and (mode == 'hold' or not record.is_held) then return told(record.outcome, 'repeated') end
  local text, changed, time = decide(state, ask)
  if mode ~= 'try' then remember_answer(fingerprint, mode == 'hold' and 'held' or 'answered', text, ask.at) end
  return text, changed, time
end

reserving.once = ask_once
