//! The actors of members that have no counter. Other actors are in the keys of counters.

/// The actors, one after the other.
#[derive(Debug, Default)]
pub struct FixedActors {
    names: Vec<u8>,
    /// The place of each member in the plan, and where its actor ends. In ascending order.
    ends: Vec<(usize, usize)>,
}

impl FixedActors {
    /// Adds the actor that `write` appends, of the member at this place. It comes after all members before it.
    pub fn push(&mut self, member: usize, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.names);
        self.ends.push((member, self.names.len()));
    }

    /// Returns the actor of the member at this place.
    pub fn get(&self, member: usize) -> Option<&[u8]> {
        let index = self.ends.binary_search_by_key(&member, |(member, _)| *member).ok()?;
        let (_, end) = self.ends.get(index)?;
        self.names.get(self.end_before(index)..*end)
    }

    fn end_before(&self, index: usize) -> usize {
        index.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |(_, end)| *end)
    }

    /// Removes the actors of the members from this place on.
    pub fn truncate(&mut self, members: usize) {
        let kept = self.ends.partition_point(|(member, _)| *member < members);
        self.names.truncate(self.end_before(kept));
        self.ends.truncate(kept);
    }

    /// Removes all actors.
    pub fn clear(&mut self) {
        self.names.clear();
        self.ends.clear();
    }

    /// Returns the length of all actors (bytes).
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the memory of the buffers, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.names.capacity() + self.ends.capacity() * size_of::<(usize, usize)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actors_are_found_by_their_members() {
        let mut actors = FixedActors::default();
        for (member, name) in [(1, "ann"), (4, ""), (5, "bob"), (9, "eve")] {
            actors.push(member, |out| out.extend_from_slice(name.as_bytes()));
        }
        let found = |actors: &FixedActors| (0..10).filter_map(|member| actors.get(member)).collect::<Vec<_>>().concat();
        assert_eq!(found(&actors), b"annbobeve");
        assert_eq!((actors.get(4), actors.get(5), actors.get(6)), (Some(&b""[..]), Some(&b"bob"[..]), None));
        actors.truncate(5);
        assert_eq!((found(&actors), actors.len()), (b"ann".to_vec(), 3));
        actors.push(5, |out| out.push(b'x'));
        assert_eq!(found(&actors), b"annx");
    }
}
