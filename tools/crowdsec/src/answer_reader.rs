//! Reading of an answer to `GET /v1/decisions/stream`, piece by piece as it arrives.
//!
//! An answer may have hundreds of thousands of decisions, and its sender is not trusted. So only one decision is in memory at
//! a time, and its length is bounded. `serde_json` parses it; this file only finds its ends.

/// Maximum length of one decision (bytes). CrowdSec's own have about 200.
const MAX_DECISION: usize = 16 * 1024;
/// Maximum length of a member's name (bytes).
const MAX_NAME: usize = 64;

const NULL: &[u8] = b"null";

/// The list that a decision is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionList {
    /// Decisions in force.
    New,
    /// Decisions that have ended.
    Deleted,
}

/// The answer is not a list of decisions, or a decision is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The answer is malformed.
    #[error("the answer is not JSON with the lists `new` and `deleted`")]
    Malformed,
    /// A decision or a name is too long.
    #[error("a decision in the answer is longer than {MAX_DECISION} bytes")]
    TooLong,
    /// The answer ends too early.
    #[error("the answer ends too early")]
    Incomplete,
}

/// Position in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Start,
    /// Before a member's name, or the end of the object.
    FirstMember,
    Member,
    Name,
    Colon,
    /// Before the value of a list.
    List(DecisionList),
    /// Within `null` in place of a list, before this character.
    Null(usize),
    /// Before a decision, or the end of the list.
    FirstDecision(DecisionList),
    NextDecision(DecisionList),
    Decision(DecisionList),
    AfterDecision(DecisionList),
    /// Within a value that is skipped.
    Skipped,
    AfterValue,
    End,
}

/// Finds the decisions in an answer.
#[derive(Debug)]
pub struct AnswerReader {
    position: Position,
    /// The name or the decision that is being read.
    text: Vec<u8>,
    /// Open objects and lists in the decision or the skipped value.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// Whether the lists `new` and `deleted` were there.
    has: [bool; 2],
}

impl Default for AnswerReader {
    fn default() -> Self {
        Self {
            position: Position::Start,
            text: Vec::new(),
            depth: 0,
            is_in_string: false,
            is_escaped: false,
            has: [false; 2],
        }
    }
}

impl AnswerReader {
    /// Reads the next piece of the answer, and calls `take` with the text of each decision that ends in it.
    ///
    /// # Errors
    /// The answer is malformed, or a decision is too long. Nothing after it may be read.
    pub fn read(&mut self, piece: &[u8], mut take: impl FnMut(DecisionList, &[u8])) -> Result<(), AnswerError> {
        for &byte in piece {
            self.step(byte, &mut take)?;
        }
        Ok(())
    }

    /// Checks that the answer is complete. CrowdSec always writes both lists.
    ///
    /// # Errors
    /// It is not.
    pub fn finish(&self) -> Result<(), AnswerError> {
        match self.position {
            Position::End if self.has == [true; 2] => Ok(()),
            Position::End => Err(AnswerError::Malformed),
            _ => Err(AnswerError::Incomplete),
        }
    }

    /// Begins a list, which may come once.
    fn begin(&mut self, list: DecisionList) -> Result<Position, AnswerError> {
        let [new, deleted] = &mut self.has;
        let has = if list == DecisionList::New { new } else { deleted };
        if std::mem::replace(has, true) { Err(AnswerError::Malformed) } else { Ok(Position::List(list)) }
    }

    fn step(&mut self, byte: u8, take: &mut impl FnMut(DecisionList, &[u8])) -> Result<(), AnswerError> {
        match self.position {
            Position::Name => return self.step_in_name(byte),
            Position::Decision(list) => return self.step_in_decision(byte, list, take),
            Position::Skipped => return self.step_in_skipped(byte),
            Position::Null(_) => {}
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => return Ok(()),
            _ => {}
        }
        self.position = match (self.position, byte) {
            (Position::Start, b'{') => Position::FirstMember,
            (Position::FirstMember | Position::Member, b'"') => {
                self.text.clear();
                Position::Name
            }
            (Position::FirstMember | Position::AfterValue, b'}') => Position::End,
            (Position::Colon, b':') => match self.text.as_slice() {
                b"new" => self.begin(DecisionList::New)?,
                b"deleted" => self.begin(DecisionList::Deleted)?,
                _ => self.begin_skipped(),
            },
            (Position::List(list), b'[') => Position::FirstDecision(list),
            // CrowdSec writes `null` for an empty list.
            (Position::List(_), b'n') => Position::Null(1),
            (Position::Null(at), byte) if NULL.get(at) == Some(&byte) => {
                if at + 1 == NULL.len() {
                    Position::AfterValue
                } else {
                    Position::Null(at + 1)
                }
            }
            (Position::FirstDecision(list) | Position::NextDecision(list), b'{') => {
                self.text.clear();
                self.text.push(byte);
                self.depth = 1;
                Position::Decision(list)
            }
            (Position::FirstDecision(_) | Position::AfterDecision(_), b']') => Position::AfterValue,
            (Position::AfterDecision(list), b',') => Position::NextDecision(list),
            (Position::AfterValue, b',') => Position::Member,
            _ => return Err(AnswerError::Malformed),
        };
        Ok(())
    }

    fn begin_skipped(&mut self) -> Position {
        self.depth = 0;
        Position::Skipped
    }

    fn step_in_name(&mut self, byte: u8) -> Result<(), AnswerError> {
        match byte {
            // The names that matter have no escapes, so a name that ends here with one is another.
            b'"' if !self.is_escaped => self.position = Position::Colon,
            _ if self.text.len() >= MAX_NAME => return Err(AnswerError::TooLong),
            _ => self.text.push(byte),
        }
        self.is_escaped = byte == b'\\' && !self.is_escaped;
        Ok(())
    }

    fn step_in_decision(
        &mut self,
        byte: u8,
        list: DecisionList,
        take: &mut impl FnMut(DecisionList, &[u8]),
    ) -> Result<(), AnswerError> {
        if self.text.len() >= MAX_DECISION {
            return Err(AnswerError::TooLong);
        }
        self.text.push(byte);
        self.count(byte);
        if self.depth == 0 {
            take(list, &self.text);
            self.position = Position::AfterDecision(list);
        }
        Ok(())
    }

    fn step_in_skipped(&mut self, byte: u8) -> Result<(), AnswerError> {
        if self.depth == 0 && !self.is_in_string {
            match byte {
                b',' => self.position = Position::Member,
                b'}' => self.position = Position::End,
                b']' => return Err(AnswerError::Malformed),
                _ => self.count(byte),
            }
        } else {
            self.count(byte);
        }
        Ok(())
    }

    /// Counts open objects and lists, outside of strings.
    fn count(&mut self, byte: u8) {
        if self.is_in_string {
            if self.is_escaped {
                self.is_escaped = false;
            } else {
                self.is_escaped = byte == b'\\';
                self.is_in_string = byte != b'"';
            }
            return;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
