//! The store's metrics: its timings, its table, and RocksDB's own numbers.

use std::sync::atomic::Ordering::Relaxed;

use rocksdb::properties;

use crate::disk::database::Database;
use crate::disk::directory;
use crate::store_core::StoreCore;
use divvy_telemetry::metrics::Metric;

impl StoreCore {
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.own().to_vec();
        metrics.extend(self.engine.admission.counters.metrics());
        metrics.extend(self.engine.admission.records.metrics());
        // There are no numbers while the database is being reopened.
        metrics.extend(self.engine.with_disk(|database| Ok(rocksdb_metrics(database))).into_iter().flatten());
        if let Ok(bytes) = directory::size(&self.path, |_| true) {
            metrics.push(Metric::gauge("divvy_rocksdb_disk_bytes", "Size of the files in the data directory.", bytes));
        }
        metrics
    }

    fn own(&self) -> [Metric; 12] {
        let (engine, swept, usage) = (&self.engine, &self.swept, self.engine.table.usage());
        [
            Metric::histogram(
                "divvy_commit_duration_seconds",
                "Time of commits to the write-ahead log, each of many hits; includes the fsync with --durability sync.",
                &engine.timings.commits,
            ),
            Metric::histogram(
                "divvy_fsync_duration_seconds",
                "Time of the fsyncs of the write-ahead log that run every second, outside commits.",
                &engine.timings.fsyncs,
            ),
            Metric::gauge("divvy_commits_failing", "1 while commits fail.", u64::from(!engine.is_well())),
            Metric::gauge(
                "divvy_journal_bytes",
                "Size of the journal: changes that are kept until their counters are written back.",
                engine.journal_bytes(),
            ),
            Metric::gauge("divvy_hot_counters", "Counters in the hot table.", usage.counters),
            Metric::gauge("divvy_hot_table_bytes", "Memory of the hot table.", usage.bytes),
            Metric::counter("divvy_hot_table_hits_total", "Actions on counters in the hot table.", usage.hits),
            Metric::counter(
                "divvy_hot_table_misses_total",
                "Actions on counters that had to be looked up in RocksDB.",
                usage.misses,
            ),
            Metric::counter(
                "divvy_expired_dropped_total",
                "Expired counters that compactions and write-backs have dropped.",
                self.expired_dropped(),
            ),
            Metric::counter(
                "divvy_unreadable_kept_total",
                "Records that a compaction could not read, and kept.",
                swept.unreadable.load(Relaxed),
            ),
            Metric::counter(
                "divvy_failed_reads_total",
                "Failed reads of counters: a damaged file or a failing disk.",
                engine.damage.reads.load(Relaxed),
            ),
            Metric::counter(
                "divvy_damaged_records_total",
                "How often a hit or a listing encountered a damaged record.",
                engine.damage.records.load(Relaxed),
            ),
        ]
    }
}

fn rocksdb_metrics(database: &Database) -> [Metric; 9] {
    let number = |name, help, property| Metric::gauge(name, help, database.number(property));
    let sum = |name, help, property| Metric::gauge(name, help, database.sum(property));
    [
        sum("divvy_rocksdb_block_cache_bytes", "Memory of RocksDB's block caches.", properties::BLOCK_CACHE_USAGE),
        sum(
            "divvy_rocksdb_write_buffer_bytes",
            "Memory of RocksDB's write buffers.",
            properties::CUR_SIZE_ALL_MEM_TABLES,
        ),
        sum(
            "divvy_rocksdb_table_reader_bytes",
            "Approximate memory of RocksDB's indexes and filters outside of the block caches.",
            properties::ESTIMATE_TABLE_READERS_MEM,
        ),
        sum(
            "divvy_rocksdb_pending_compaction_bytes",
            "Approximate bytes that compactions have yet to rewrite.",
            properties::ESTIMATE_PENDING_COMPACTION_BYTES,
        ),
        number(
            "divvy_rocksdb_delayed_write_bytes_per_second",
            "Rate to which RocksDB slows down writes because it is behind; 0: not slowed down.",
            properties::ACTUAL_DELAYED_WRITE_RATE,
        ),
        number(
            "divvy_rocksdb_writes_stopped",
            "1 while RocksDB accepts no writes because it is behind.",
            properties::IS_WRITE_STOPPED,
        ),
        number("divvy_rocksdb_running_compactions", "Running compactions.", properties::NUM_RUNNING_COMPACTIONS),
        number("divvy_rocksdb_running_flushes", "Running flushes.", properties::NUM_RUNNING_FLUSHES),
        Metric::counter(
            "divvy_rocksdb_background_errors_total",
            "Errors of RocksDB's background work.",
            database.number(properties::BACKGROUND_ERRORS),
        ),
    ]
}
