//! The time of each part by itself: `cargo bench --bench parts`, `-- NAME` picks.

mod works;

use criterion::{Criterion, Throughput};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for mut work in works::works() {
        let mut group = criterion.benchmark_group("parts");
        if work.bytes > 0 {
            group.throughput(Throughput::Bytes(work.bytes as u64));
        }
        group.bench_function(&work.name, |bencher| bencher.iter(|| (work.once)()));
        group.finish();
    }
    criterion.final_summary();
}
