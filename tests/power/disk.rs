//! A file system that distinguishes data on disk from data in the kernel's memory, and the disks that a power cut can
//! leave.
//!
//! Contents: each 512-byte sector, or each 4096-byte page, written since the file's last sync may have any of its
//! contents since then, independently of the others. Writes may therefore be missing, torn and reordered. The same is
//! true of the file's size. A hole in a file contains zeros.
//!
//! Names: with [`Names::Ordered`], as on ext4 and xfs, a directory's changes reach the disk in order. A sync of a file
//! includes the changes of its own name and all earlier ones. With [`Names::Loose`], which is all that POSIX promises,
//! each change that was not followed by a sync of the directory is present or not, independently of the others.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::Path;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Rng;

use super::trace::{Event, KEEP_SIZE, O_CREAT, O_TRUNC, Trace};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// The possible effects of a power cut.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub names: Names,
    /// Whether the unsynced end of RocksDB's manifest may have holes, which RocksDB rejects. The end is written at once
    /// and nearly always within one page, so most disks at worst tear it at its end.
    pub manifest_holes: bool,
}

/// The order of changes of names on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    Ordered,
    Loose,
}

/// The effect of a power cut on writes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutEffect {
    /// All are present, as when only the process ends.
    Kept,
    /// None is present.
    Lost,
    /// The first ones are present, and the next is torn.
    Prefix,
    /// All are present except for one stretch.
    Hole,
    /// Each sector or page is decided separately.
    Scattered,
}

pub const CUT_EFFECTS: [CutEffect; 5] =
    [CutEffect::Kept, CutEffect::Lost, CutEffect::Prefix, CutEffect::Hole, CutEffect::Scattered];

#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, data: Range<usize> },
    Resize(usize),
}

/// A file, regardless of its names.
#[derive(Debug, Default)]
struct Inode {
    /// The content at the last sync.
    durable: Vec<u8>,
    /// Changes since then, each with the number of its event.
    pending: Vec<(usize, Change)>,
}

/// A name that is removed, a name that is set to an inode, or both at once.
#[derive(Debug, Clone)]
struct NameChange {
    removed: Option<String>,
    set: Option<(String, usize)>,
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        names.extend(self.set.clone());
    }
}

/// The target of an open descriptor.
#[derive(Debug, Clone, Copy)]
enum OpenTarget {
    File(usize),
    Directory,
}

/// The files of a directory after some of a trace's events.
pub struct FileSystem<'a> {
    trace: &'a Trace,
    /// The directory's path in the trace, with a slash at the end.
    directory: String,
    model: Model,
    /// The number of events that have happened.
    happened: usize,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<(usize, NameChange)>,
    opened: HashMap<i32, OpenTarget>,
    /// Syncs in progress, by descriptor.
    syncing: HashMap<i32, Vec<usize>>,
}

impl<'a> FileSystem<'a> {
    /// Creates the file system for the directory with this path in the trace, which exists and is empty at first.
    pub fn new(trace: &'a Trace, directory: &Path, model: Model) -> Self {
        Self {
            trace,
            directory: format!("{}/", directory.to_str().unwrap()),
            model,
            happened: 0,
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            opened: HashMap::new(),
            syncing: HashMap::new(),
        }
    }

    /// Applies the next events, up to but excluding event number `until`.
    pub fn advance(&mut self, until: usize) {
        let trace = self.trace;
        while self.happened < until {
            self.happen(self.happened, &trace.events[self.happened]);
            self.happened += 1;
        }
    }

    /// Returns the first event whose write to a write-ahead log a power cut could still undo. All earlier writes to the
    /// logs are on stable storage.
    pub fn first_unsynced_log_write(&self) -> usize {
        let logs = self.names.iter().filter(|(name, _)| name.ends_with(".log"));
        let writes = logs.filter_map(|(_, inode)| self.inodes[*inode].pending.first());
        writes.map(|(index, _)| *index).min().unwrap_or(self.happened)
    }

    /// Writes a disk that a power cut could leave now into the new directory `place`. The share `others` of the files,
    /// from 0 to 1, is treated differently from `effect`.
    pub fn cut(&self, effect: CutEffect, others: f64, rng: &mut Rng, place: &Path) {
        fs::create_dir(place).unwrap();
        for (name, inode) in self.surviving_names(effect, rng) {
            let effect =
                if rng.random_bool(others) { CUT_EFFECTS[rng.random_range(0..CUT_EFFECTS.len())] } else { effect };
            let has_holes = self.model.manifest_holes || !name.starts_with("MANIFEST");
            let effect = if has_holes || !matches!(effect, CutEffect::Hole | CutEffect::Scattered) {
                effect
            } else {
                CutEffect::Prefix
            };
            fs::write(place.join(name), self.surviving_content(&self.inodes[inode], effect, rng)).unwrap();
        }
    }

    fn happen(&mut self, index: usize, event: &Event) {
        match event {
            Event::NewProcess => {
                self.opened.clear();
                self.syncing.clear();
            }
            Event::Open { fd, flags, path } => self.open(index, *fd, *flags, path),
            Event::Close { fd } => {
                self.opened.remove(fd);
                self.syncing.remove(fd);
            }
            Event::Write { fd, offset, data } => {
                self.change(index, *fd, Change::Write { offset: *offset as usize, data: data.clone() });
            }
            Event::Truncate { fd, length } => self.change(index, *fd, Change::Resize(*length as usize)),
            Event::Allocate { fd, mode, end } => {
                if mode & KEEP_SIZE == 0
                    && let Some(OpenTarget::File(inode)) = self.opened.get(fd).copied()
                    && self.size(inode) < *end as usize
                {
                    self.change(index, *fd, Change::Resize(*end as usize));
                }
            }
            Event::Link { from, to } => {
                if let (Some(from), Some(to)) = (self.name(from), self.name(to)) {
                    let inode = self.names[&from];
                    self.rename(index, NameChange { removed: None, set: Some((to, inode)) });
                }
            }
            Event::Rename { from, to } => {
                let (removed, to) = (self.name(from), self.name(to));
                assert!(removed.is_some() || to.is_none(), "{to:?} comes from elsewhere");
                if let Some(from) = &removed {
                    let set = to.map(|to| (to, self.names[from]));
                    self.rename(index, NameChange { removed, set });
                }
            }
            Event::Unlink { path } => {
                let removed = self.name(&Some(path.clone()));
                if removed.is_some() {
                    self.rename(index, NameChange { removed, set: None });
                }
            }
            Event::MakeDirectory | Event::RemoveDirectory => {}
            Event::SyncBegins { fd } => self.syncing.entry(*fd).or_default().push(index),
            Event::SyncEnds { fd } => {
                let began = self.syncing.get_mut(fd).map(|syncs| syncs.remove(0));
                match (self.opened.get(fd).copied(), began) {
                    (Some(OpenTarget::File(inode)), Some(began)) => self.synced(inode, began),
                    (Some(OpenTarget::Directory), Some(began)) => self.names_synced(began),
                    _ => {}
                }
            }
        }
    }

    /// Returns the name within the directory for a path.
    fn name(&self, path: &Option<String>) -> Option<String> {
        let name = path.as_ref()?.strip_prefix(&self.directory)?;
        (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
    }

    fn open(&mut self, index: usize, fd: i32, flags: u32, path: &str) {
        if *path == self.directory[..self.directory.len() - 1] {
            self.opened.insert(fd, OpenTarget::Directory);
        }
        let Some(name) = self.name(&Some(path.to_owned())) else { return };
        let inode = match self.names.get(&name) {
            Some(&inode) => {
                if flags & O_TRUNC != 0 {
                    self.inodes[inode].pending.push((index, Change::Resize(0)));
                }
                inode
            }
            None => {
                assert!(flags & O_CREAT != 0, "{name} was opened and never made");
                self.inodes.push(Inode::default());
                let inode = self.inodes.len() - 1;
                self.rename(index, NameChange { removed: None, set: Some((name, inode)) });
                inode
            }
        };
        self.opened.insert(fd, OpenTarget::File(inode));
    }

    fn change(&mut self, index: usize, fd: i32, change: Change) {
        if let Some(OpenTarget::File(inode)) = self.opened.get(&fd) {
            self.inodes[*inode].pending.push((index, change));
        }
    }

    fn rename(&mut self, index: usize, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push((index, change));
    }

    fn size(&self, inode: usize) -> usize {
        let inode = &self.inodes[inode];
        inode.pending.iter().fold(inode.durable.len(), |size, (_, change)| resized(size, change))
    }

    /// Ends a sync of the file that began with event `began`.
    fn synced(&mut self, inode: usize, began: usize) {
        let file = &mut self.inodes[inode];
        let done = file.pending.partition_point(|(index, _)| *index < began);
        for (_, change) in file.pending.drain(..done) {
            apply(&mut file.durable, &change, &self.trace.bytes);
        }
        if self.model.names == Names::Ordered {
            let is_of_file = |change: &NameChange| change.set.as_ref().is_some_and(|(_, own)| *own == inode);
            let own = |(index, change): &(usize, NameChange)| *index < began && is_of_file(change);
            let last = self.pending_names.iter().rposition(own);
            self.names_reached_disk(last.map_or(0, |last| last + 1));
        }
    }

    fn names_synced(&mut self, began: usize) {
        self.names_reached_disk(self.pending_names.partition_point(|(index, _)| *index < began));
    }

    fn names_reached_disk(&mut self, count: usize) {
        for (_, change) in self.pending_names.drain(..count) {
            change.apply(&mut self.durable_names);
        }
    }

    fn surviving_names(&self, effect: CutEffect, rng: &mut Rng) -> BTreeMap<String, usize> {
        let mut names = self.durable_names.clone();
        let pending = self.pending_names.len();
        let first = match effect {
            CutEffect::Kept => pending,
            CutEffect::Lost => 0,
            _ => rng.random_range(0..=pending),
        };
        for (place, (_, change)) in self.pending_names.iter().enumerate() {
            let is_there = match self.model.names {
                Names::Ordered => place < first,
                Names::Loose => effect == CutEffect::Kept || effect != CutEffect::Lost && rng.random(),
            };
            if is_there {
                change.apply(&mut names);
            }
        }
        names
    }

    fn surviving_content(&self, inode: &Inode, effect: CutEffect, rng: &mut Rng) -> Vec<u8> {
        let mut content = inode.durable.clone();
        let count = inode.pending.len();
        match effect {
            _ if count == 0 => {}
            CutEffect::Lost => {}
            CutEffect::Kept => self.replay(&mut content, inode, count),
            CutEffect::Prefix => {
                let whole = rng.random_range(0..count);
                self.replay(&mut content, inode, whole);
                apply(&mut content, &torn(&inode.pending[whole].1, rng), &self.trace.bytes);
            }
            CutEffect::Hole => {
                self.replay(&mut content, inode, count);
                let (_, hit) = &inode.pending[rng.random_range(0..count)];
                if let Change::Write { offset, data } = hit {
                    let unit = if rng.random() { SECTOR } else { PAGE };
                    let place = (offset + rng.random_range(0..data.len().max(1))) / unit * unit;
                    restore(&mut content, &inode.durable, place, unit);
                }
            }
            CutEffect::Scattered => {
                let unit = if rng.random() { SECTOR } else { PAGE };
                content = self.scattered(inode, unit, rng);
            }
        }
        content
    }

    fn replay(&self, content: &mut Vec<u8>, inode: &Inode, count: usize) {
        for (_, change) in &inode.pending[..count] {
            apply(content, change, &self.trace.bytes);
        }
    }

    /// Returns each unit after a random number of the pending changes.
    fn scattered(&self, inode: &Inode, unit: usize, rng: &mut Rng) -> Vec<u8> {
        let count = inode.pending.len();
        let any = |rng: &mut Rng| match rng.random_range(0..4) {
            0 => 0,
            1 => rng.random_range(0..=count),
            _ => count,
        };
        let sized_by = any(rng);
        let mut reached: HashMap<usize, usize> = HashMap::new();
        let mut content = inode.durable.clone();
        let mut size = content.len();
        for (place, (_, change)) in inode.pending.iter().enumerate() {
            if place < sized_by {
                size = resized(size, change);
            }
            let touched = match change {
                Change::Write { offset, data } => *offset..offset + data.len(),
                Change::Resize(length) => *length..content.len().max(*length),
            };
            content.resize(content.len().max(touched.end), 0);
            let mut at = touched.start;
            while at < touched.end {
                let number = at / unit;
                let end = touched.end.min((number + 1) * unit);
                if place < *reached.entry(number).or_insert_with(|| any(rng)) {
                    match change {
                        Change::Write { offset, data } => {
                            let from = data.start + at - offset;
                            content[at..end].copy_from_slice(&self.trace.bytes[from..from + end - at]);
                        }
                        Change::Resize(_) => content[at..end].fill(0),
                    }
                }
                at = end;
            }
        }
        content.resize(size, 0);
        content
    }
}

fn resized(size: usize, change: &Change) -> usize {
    match change {
        Change::Write { offset, data } => size.max(offset + data.len()),
        Change::Resize(length) => *length,
    }
}

fn apply(content: &mut Vec<u8>, change: &Change, bytes: &[u8]) {
    content.resize(resized(content.len(), change), 0);
    if let Change::Write { offset, data } = change {
        content[*offset..offset + data.len()].copy_from_slice(&bytes[data.clone()]);
    }
}

/// Returns the start of a write, up to the end of a sector.
fn torn(change: &Change, rng: &mut Rng) -> Change {
    match change {
        Change::Write { offset, data } => {
            let end = (offset + rng.random_range(0..=data.len())) / SECTOR * SECTOR;
            Change::Write { offset: *offset, data: data.start..data.start + end.saturating_sub(*offset) }
        }
        Change::Resize(length) => Change::Resize(*length),
    }
}

/// Replaces `length` bytes by the durable content, or by zeros.
fn restore(content: &mut [u8], durable: &[u8], at: usize, length: usize) {
    let end = content.len().min(at + length);
    if at < end {
        content[at..end].fill(0);
        if let Some(kept) = durable.get(at..end.min(durable.len())) {
            content[at..at + kept.len()].copy_from_slice(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const ROOT: &str = "/data";

    fn write(trace: &mut Trace, fd: i32, offset: u64, data: &[u8]) {
        let start = trace.bytes.len();
        trace.bytes.extend(data);
        trace.events.push(Event::Write { fd, offset, data: start..trace.bytes.len() });
    }

    fn open(trace: &mut Trace, fd: i32, name: &str) {
        trace.events.push(Event::Open { fd, flags: O_CREAT, path: format!("{ROOT}/{name}") });
    }

    fn sync(trace: &mut Trace, fd: i32) {
        trace.events.extend([Event::SyncBegins { fd }, Event::SyncEnds { fd }]);
    }

    /// Returns the contents of a file after many power cuts at the end of the trace; `None` if the file is missing.
    fn seen(trace: &Trace, names: Names, effect: CutEffect, name: &str) -> Vec<Option<Vec<u8>>> {
        let mut system = FileSystem::new(trace, Path::new(ROOT), Model { names, manifest_holes: true });
        system.advance(trace.events.len());
        let place = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        for seed in 0..200 {
            let disk = place.path().join(seed.to_string());
            system.cut(effect, 0.0, &mut Rng::seed_from_u64(seed), &disk);
            seen.push(fs::read(disk.join(name)).ok());
        }
        seen.sort();
        seen.dedup();
        seen
    }

    #[test]
    fn synced_data_is_present_and_other_data_may_be() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        write(&mut trace, 3, 0, b"kept");
        sync(&mut trace, 3);
        write(&mut trace, 3, 0, b"late");
        for effect in CUT_EFFECTS {
            let seen = seen(&trace, Names::Ordered, effect, "a");
            assert!(seen.iter().all(|content| [Some(b"kept".to_vec()), Some(b"late".to_vec())].contains(content)));
            assert!(!seen.is_empty());
        }
        assert_eq!(seen(&trace, Names::Ordered, CutEffect::Scattered, "a").len(), 2);
        assert!(seen(&trace, Names::Loose, CutEffect::Scattered, "a").contains(&None), "no sync of the directory");
    }

    #[test]
    fn later_page_may_be_present_without_an_earlier_one() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        sync(&mut trace, 3);
        write(&mut trace, 3, 0, &[1; 2 * PAGE]);
        let half = [vec![0; PAGE], vec![1; PAGE]].concat();
        assert!(seen(&trace, Names::Ordered, CutEffect::Scattered, "a").contains(&Some(half.clone())));
        assert!(seen(&trace, Names::Ordered, CutEffect::Hole, "a").contains(&Some(half)));
        assert!(seen(&trace, Names::Ordered, CutEffect::Scattered, "a").contains(&Some(vec![])));
    }

    #[test]
    fn writes_during_a_sync_are_not_synced() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        trace.events.push(Event::SyncBegins { fd: 3 });
        write(&mut trace, 3, 0, b"late");
        trace.events.push(Event::SyncEnds { fd: 3 });
        assert_eq!(seen(&trace, Names::Ordered, CutEffect::Lost, "a"), [Some(vec![])]);
    }

    #[test]
    fn names_reach_the_disk_in_order_or_loosely() {
        let mut trace = Trace::default();
        open(&mut trace, 3, "a");
        open(&mut trace, 4, "b");
        let both = |names| {
            let mut system = FileSystem::new(&trace, Path::new(ROOT), Model { names, manifest_holes: true });
            system.advance(trace.events.len());
            let mut rng = Rng::seed_from_u64(1);
            let names = (0..100).map(|_| system.surviving_names(CutEffect::Scattered, &mut rng).into_keys().collect());
            names.collect::<std::collections::BTreeSet<Vec<_>>>()
        };
        assert!(!both(Names::Ordered).contains(&vec!["b".to_owned()]));
        assert!(both(Names::Loose).contains(&vec!["b".to_owned()]));
    }
}
