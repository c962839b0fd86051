use super::*;

const P2: Plane = Plane::P2;
const P3: Plane = Plane::P3;
const P4: Plane = Plane::P4;

/// Creates a table of experts with three planes of 2, 1 and 1 bytes.
pub(super) fn table(layers: usize, experts: usize, experts_per_token: usize) -> Arc<ExpertTable> {
    let entry = ExpertEntry {
        plane_bytes: [2, 1, 1, 0, 0],
        error_drops: [0.9, 0.08, 0.02, 0.0, 0.0],
        frequency: 0.0,
        weight_square: 1.0,
    };
    Arc::new(ExpertTable::new(vec![vec![entry; experts]; layers], experts_per_token))
}

fn lru(table: &Arc<ExpertTable>, budget_bytes: u64) -> Residency {
    let policy = Box::new(LeastRecentlyUsed::new(Arc::clone(table)));
    let options = ResidencyOptions { budget_bytes, policy, floor_share: 0.0 };
    Residency::new(Arc::clone(table), options).unwrap()
}

fn id(layer: u32, expert: u32, plane: Plane) -> PlaneId {
    PlaneId { layer, expert, plane }
}

/// Uses an expert's first `planes` planes, reading the missing ones, and returns the evicted planes.
fn fetch(books: &mut Residency, layer: u32, expert: u32, planes: usize) -> Vec<PlaneId> {
    let mut evicted = Vec::new();
    books.used(layer, expert, planes, 1);
    books.pin(layer, expert);
    for plane in Plane::ALL.into_iter().take(planes) {
        let id = id(layer, expert, plane);
        if books.state(id) == PlaneState::Absent {
            assert!(books.admit(id, Admission::Needed, &mut evicted), "{id:?} in {books:?}");
            assert_eq!(books.state(id), PlaneState::Reading);
            books.arrived(id);
        }
        assert_eq!(books.state(id), PlaneState::Resident);
    }
    books.unpin(layer, expert);
    evicted
}

#[test]
fn planes_leave_from_the_top_and_come_back_one_by_one() {
    let table = table(1, 4, 1);
    let mut books = lru(&table, 8);
    assert!(fetch(&mut books, 0, 0, 3).is_empty());
    assert!(fetch(&mut books, 0, 1, 3).is_empty());
    assert_eq!(books.used_bytes(), 8);
    assert_eq!(fetch(&mut books, 0, 2, 1), [id(0, 0, P4), id(0, 0, P3)]);
    assert_eq!((books.resident(0, 0), books.resident(0, 1), books.resident(0, 2)), (1, 3, 1));
    // The upgrade only reads the missing planes.
    assert_eq!(fetch(&mut books, 0, 0, 2), [id(0, 1, P4)]);
    let counters = books.counters();
    assert_eq!(counters.hits, [1, 0, 0, 0, 0]);
    assert_eq!(counters.misses, [3, 3, 2, 0, 0]);
    assert_eq!(counters.missed_bytes, [6, 3, 2, 0, 0]);
    assert_eq!(counters.bytes_peak, 8);
}

#[test]
fn the_least_budget_is_named() {
    let table = table(2, 4, 2);
    assert_eq!((table.least_bytes(), table.token_bytes(), table.total_bytes()), (8, 16, 32));
    let options = ResidencyOptions::new(&table, 7).unwrap();
    let error = Residency::new(Arc::clone(&table), options).unwrap_err();
    assert!(matches!(error, EngineError::ExpertBudget { asked: 7, least: 8 }), "{error}");
    let mut books = lru(&table, 8);
    assert!(books.set_budget(7, &mut Vec::new()).is_err());
    assert_eq!(books.budget_bytes(), 8);
}

#[test]
fn what_is_pinned_or_being_read_stays() {
    let table = table(1, 4, 1);
    let mut books = lru(&table, 4);
    let mut evicted = Vec::new();
    fetch(&mut books, 0, 0, 3);
    books.pin(0, 0);
    assert!(!books.admit(id(0, 1, P2), Admission::Needed, &mut evicted));
    assert_eq!(books.counters().refused, 1);
    books.shed(4, &mut evicted);
    assert!(evicted.is_empty());
    books.unpin(0, 0);
    assert!(books.admit(id(0, 1, P2), Admission::Needed, &mut evicted));
    assert_eq!(evicted, [id(0, 0, P4), id(0, 0, P3)]);
    evicted.clear();
    assert!(books.admit(id(0, 2, P2), Admission::Needed, &mut evicted));
    assert_eq!(evicted, [id(0, 0, P2)]);
    // The planes of experts 1 and 2 are being read, so nothing can be evicted.
    assert!(!books.admit(id(0, 3, P2), Admission::Needed, &mut evicted));
    books.failed(id(0, 1, P2));
    assert_eq!((books.state(id(0, 1, P2)), books.used_bytes()), (PlaneState::Absent, 2));
    assert!(books.admit(id(0, 3, P2), Admission::Needed, &mut evicted));
}

#[test]
fn refinements_wait_for_their_base() {
    let table = table(1, 2, 1);
    let mut books = lru(&table, 8);
    let mut evicted = Vec::new();
    assert!(!books.admit(id(0, 0, P3), Admission::Needed, &mut evicted));
    assert!(books.admit(id(0, 0, P2), Admission::Needed, &mut evicted));
    assert!(!books.admit(id(0, 0, P2), Admission::Needed, &mut evicted));
    assert!(books.admit(id(0, 0, P3), Admission::Needed, &mut evicted));
    assert!(!books.admit(id(0, 0, Plane::P6), Admission::Needed, &mut evicted), "no such plane");
    books.arrived(id(0, 0, P3));
    assert_eq!(books.resident(0, 0), 0);
    books.failed(id(0, 0, P2));
    // The base failed after its refinement arrived. It is read again, and the expert is complete.
    assert!(books.admit(id(0, 0, P2), Admission::Needed, &mut evicted));
    books.arrived(id(0, 0, P2));
    assert_eq!((books.resident(0, 0), books.used_bytes()), (2, 3));
}

#[test]
fn shedding_takes_refinements_of_all_before_any_base() {
    let table = table(2, 4, 1);
    let options = ResidencyOptions::new(&table, 16).unwrap();
    let mut books = Residency::new(Arc::clone(&table), options).unwrap();
    for expert in 0..2 {
        fetch(&mut books, 0, expert, 3);
        fetch(&mut books, 1, expert, 3);
    }
    let mut evicted = Vec::new();
    books.shed(9, &mut evicted);
    assert_eq!(books.used_bytes(), 6);
    let bases = evicted.iter().position(|id| id.plane == P2);
    assert_eq!(bases, Some(8), "{evicted:?}");
    assert_eq!(books.budget_bytes(), 16);
}

#[test]
fn a_smaller_budget_holds_at_once() {
    let table = table(1, 4, 1);
    let mut books = lru(&table, 16);
    (0..4).for_each(|expert| assert!(fetch(&mut books, 0, expert, 3).is_empty()));
    let mut evicted = Vec::new();
    books.set_budget(6, &mut evicted).unwrap();
    assert_eq!((books.used_bytes(), evicted.len()), (6, 8));
    assert_eq!((books.resident(0, 2), books.resident(0, 3)), (1, 3));
}

#[test]
fn a_prefetch_takes_only_what_is_worth_less() {
    let table = table(2, 4, 1);
    let options = FrequencyOptions { prior_tokens: 1.0, ..FrequencyOptions::default() };
    let policy = Box::new(DecayedFrequency::new(Arc::clone(&table), options).unwrap());
    let options = ResidencyOptions { budget_bytes: 8, policy, floor_share: 0.0 };
    let mut books = Residency::new(Arc::clone(&table), options).unwrap();
    let mut evicted = Vec::new();
    // One expert is used by each token, another was used once.
    fetch(&mut books, 0, 1, 3);
    for _ in 0..20 {
        books.begin_step();
        assert!(fetch(&mut books, 0, 0, 3).is_empty());
    }
    books.begin_step();
    assert!(books.admit(id(1, 0, P2), Admission::Prefetch, &mut evicted));
    assert_eq!(evicted, [id(0, 1, P4), id(0, 1, P3)]);
    books.arrived(id(1, 0, P2));
    assert!(books.admit(id(1, 1, P2), Admission::Prefetch, &mut evicted));
    books.arrived(id(1, 1, P2));
    // The hot expert and planes predicted for the same step remain.
    assert!(!books.admit(id(1, 2, P2), Admission::Prefetch, &mut evicted));
    books.used(1, 0, 1, 1);
    assert_eq!(books.counters().prefetch_hits, [1, 0, 0, 0, 0]);
    // Predictions of one step are void in the next.
    books.begin_step();
    assert!(books.admit(id(1, 2, P2), Admission::Prefetch, &mut evicted));
}

#[test]
fn layers_keep_their_floor() {
    let table = table(2, 8, 1);
    let policy = Box::new(LeastRecentlyUsed::new(Arc::clone(&table)));
    let options = ResidencyOptions { budget_bytes: 16, policy, floor_share: 0.5 };
    let mut books = Residency::new(Arc::clone(&table), options).unwrap();
    fetch(&mut books, 1, 0, 3);
    for expert in 0..8 {
        fetch(&mut books, 0, expert, 3);
    }
    assert_eq!(books.resident(1, 0), 3, "within the floor of its layer");
    for expert in 1..8 {
        fetch(&mut books, 1, expert, 3);
    }
    assert_eq!(books.resident(1, 0), 0, "its own layer may take it");
}

#[test]
fn what_is_not_waited_for_takes_only_what_is_worth_less() {
    let table = table(1, 4, 1);
    let worth = [[9.0, 3.0, 2.0, 0.0, 0.0], [5.0, 4.0, 1.0, 0.0, 0.0], [8.0; 5], [8.0; 5]];
    let policy = Box::new(StaticHotSet::of_uses(Arc::clone(&table), worth.to_vec()));
    let options = ResidencyOptions { budget_bytes: 6, policy, floor_share: 0.0 };
    let mut books = Residency::new(Arc::clone(&table), options).unwrap();
    fetch(&mut books, 0, 0, 3);
    fetch(&mut books, 0, 1, 1);
    let mut evicted = Vec::new();
    assert!(books.admit(id(0, 1, P3), Admission::Optional, &mut evicted));
    assert_eq!(evicted, [id(0, 0, P4)]);
    books.arrived(id(0, 1, P3));
    // The plane of value 1 would evict one of value 3.
    assert!(!books.admit(id(0, 1, P4), Admission::Optional, &mut evicted));
    assert_eq!((books.resident(0, 0), books.resident(0, 1), evicted.len()), (2, 2, 1));
}

/// Returns the first expert to evict if slots are counted, by scanning all of them.
fn first_to_leave(books: &Residency, layer: u32, admission_threshold: f64) -> Option<PlaneId> {
    let mut least: Option<((bool, f64), PlaneId)> = None;
    for slot in books.slots.iter().filter(|slot| slot.is_evictable()) {
        let id = id(slot.layer, slot.expert, P2);
        let is_expected = slot.expected == books.step;
        let policy = &books.policy;
        let worth =
            if is_expected { policy.expected_score(id) } else { policy.retention_score(id) };
        let is_floor = books.is_floor(id, Some(layer));
        let key = (is_floor, worth);
        let allowed = worth < admission_threshold && !(is_floor && admission_threshold.is_finite());
        if allowed && least.is_none_or(|(other, _)| key < other) {
            least = Some((key, id));
        }
    }
    least.map(|(_, id)| id)
}

#[test]
fn slots_are_taken_from_the_expert_that_a_look_at_all_finds() {
    const SLOTS: usize = 12;
    let table = table(3, 16, 2);
    // Scores of this policy only rise within a step.
    let policy = Box::new(LeastRecentlyUsed::new(Arc::clone(&table)));
    let options = ResidencyOptions { budget_bytes: 40, policy, floor_share: 0.5 };
    let mut books = Residency::new(Arc::clone(&table), options).unwrap();
    books.set_slot_capacity(SLOTS, &mut Vec::new());
    let mut state = 1u64;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32 % below
    };
    let (mut reading, mut pinned, mut taken) = (Vec::new(), Vec::new(), 0);
    for turn in 0..2000 {
        if turn % 8 == 0 {
            reading.drain(..).for_each(|id| books.arrived(id));
            pinned.drain(..).for_each(|(layer, expert)| books.unpin(layer, expert));
            books.begin_step();
        }
        // Low indices are used most.
        let (layer, expert) = (draw(3), draw(16).min(draw(16)));
        let admission = match draw(4) {
            0 => Admission::Prefetch,
            1 => Admission::Optional,
            _ => Admission::Needed,
        };
        if admission == Admission::Needed {
            books.used(layer, expert, 1, 1);
        }
        let id = id(layer, expert, P2);
        if books.state(id) != PlaneState::Absent {
            books.pin(layer, expert);
            pinned.push((layer, expert));
            continue;
        }
        let is_full = books.held_experts >= SLOTS;
        let expected = first_to_leave(&books, layer, books.admission_threshold(id, admission));
        let mut evicted = Vec::new();
        let is_admitted = books.admit(id, admission, &mut evicted);
        assert_eq!(is_admitted, !is_full || expected.is_some(), "turn {turn}");
        assert_eq!(evicted.first().copied(), expected.filter(|_| is_full), "turn {turn}");
        taken += evicted.len();
        match draw(4) {
            0 if is_admitted => reading.push(id),
            _ => books.arrived(id),
        }
        let held = books.slots.iter().filter(|slot| slot.top().is_some()).count();
        assert_eq!(books.held_experts, held);
    }
    assert!(taken > 100, "only {taken} left");
}

#[test]
fn the_map_shows_what_the_books_hold() {
    let table = table(2, 3, 1);
    let mut books = lru(&table, 6);
    let map = Arc::clone(books.map());
    let mut evicted = Vec::new();
    books.begin_step();
    assert!(books.admit(id(1, 2, P2), Admission::Needed, &mut evicted));
    let planes = map.read().layers[1][2];
    assert_eq!((planes.resident, planes.arriving, planes.last_used), (0, 1, 0));
    books.failed(id(1, 2, P2));
    assert_eq!(map.read().layers[1][2], ExpertPlanes::default());
    for (layer, expert, planes) in [(0, 0, 3), (1, 1, 2), (0, 2, 3), (1, 1, 1)] {
        books.begin_step();
        evicted.extend(fetch(&mut books, layer, expert, planes));
        let read = map.read();
        assert_eq!(read.layers[layer as usize][expert as usize].last_used, read.step);
        for slot in &books.slots {
            assert_eq!(read.layers[slot.layer as usize][slot.expert as usize], slot.planes());
        }
    }
    assert!(!evicted.is_empty());
    books.shed(u64::MAX, &mut evicted);
    assert!(map.read().layers.iter().flatten().all(|planes| planes.resident == 0));
}
