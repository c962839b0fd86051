use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;

fn below(random: &mut Xoshiro256PlusPlus, end: u64) -> u64 {
    random.next_u64() % end
}

fn jobs(random: &mut Xoshiro256PlusPlus) -> Vec<ReadJob> {
    let mut jobs = Vec::new();
    for expert in 0..1 + below(random, 3) as u32 {
        let mut rows = 1 + below(random, 9) as u32;
        for plane in Plane::ALL.into_iter().take(1 + below(random, 3) as usize) {
            let (read_ns, compute_ns) = (below(random, 12), below(random, 12));
            jobs.push(ReadJob { expert, plane, rows, read_ns, compute_ns });
            rows = 1 + below(random, u64::from(rows)) as u32;
        }
    }
    jobs
}

/// Returns the shortest makespan over all orders that respect the chains.
fn best(left: &mut Vec<ReadJob>, done: &mut Vec<ReadJob>, busy: u64) -> u64 {
    if left.is_empty() {
        return makespan_ns(done, busy);
    }
    let mut least = u64::MAX;
    for at in 0..left.len() {
        let job = left[at];
        if left.iter().any(|other| other.expert == job.expert && other.plane < job.plane) {
            continue;
        }
        left.remove(at);
        done.push(job);
        least = least.min(best(left, done, busy));
        done.pop();
        left.insert(at, job);
    }
    least
}

fn keeps_chains(jobs: &[ReadJob]) -> bool {
    let later = |at: usize| &jobs[at + 1..];
    jobs.iter().enumerate().all(|(at, job)| {
        later(at).iter().all(|next| next.expert != job.expert || next.plane > job.plane)
    })
}

#[test]
fn johnson_is_as_good_as_any_order() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    for _ in 0..400 {
        let mut list = jobs(&mut random);
        let busy = below(&mut random, 20);
        let least = best(&mut list.clone(), &mut Vec::new(), busy);
        order(&mut list, OrderRule::Johnson);
        assert!(keeps_chains(&list), "{list:?}");
        assert_eq!(makespan_ns(&list, busy), least, "{list:?}");
    }
}

#[test]
fn the_hottest_head_is_always_next() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(8);
    for _ in 0..200 {
        let mut list = jobs(&mut random);
        order(&mut list, OrderRule::HottestFirst);
        assert!(keeps_chains(&list), "{list:?}");
        for (at, job) in list.iter().enumerate() {
            let rest = &list[at..];
            let is_head = |head: &&ReadJob| {
                rest.iter().all(|o| o.expert != head.expert || o.plane >= head.plane)
            };
            assert!(rest.iter().filter(is_head).all(|head| head.rows <= job.rows), "{list:?}");
        }
    }
}

#[test]
fn on_a_slow_disk_with_planes_of_one_size_both_end_alike() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(9);
    for _ in 0..100 {
        let mut list = jobs(&mut random);
        for job in &mut list {
            job.read_ns = 100;
            job.compute_ns = u64::from(job.rows);
        }
        let mut other = list.clone();
        order(&mut list, OrderRule::Johnson);
        order(&mut other, OrderRule::HottestFirst);
        assert_eq!(makespan_ns(&list, 0), makespan_ns(&other, 0));
    }
}
