//! NCCL with one rank, which is all that one card can do.

use nestling_core::group::RankShare;
use nestling_cuda::{CudaBackend, CudaOptions, NcclLink};
use nestling_gpu::{Allocation, CommandRecorder, Device, PeerLink, PeerPart, PeerState, Storage};
use nestling_testkit::{Test, note, tests};

/// The library loads and connects, and a transfer keeps the bytes of the only rank.
fn one_rank_connects_and_keeps_its_bytes() {
    let mut backend = match CudaBackend::open(&CudaOptions::default()) {
        Ok(backend) => backend,
        Err(error) => return note!("NCCL not tried, no device: {error}"),
    };
    let mut link = NcclLink::new(&backend).unwrap();
    assert_eq!(link.state(), PeerState::Closed);
    let id = match link.new_id() {
        Ok(id) => id,
        Err(error) => return note!("NCCL not tried: {error}"),
    };
    let bytes: Vec<u8> = (0..1 << 16).map(|at: u32| (at * 31 % 251) as u8).collect();
    let memory = backend.allocate("part of a rank", bytes.len() as u64).unwrap();
    backend.recorder().overwrite(&bytes, &memory.binding(), 0).unwrap();
    backend.recorder().finish().unwrap();
    link.connect(RankShare::default(), &id, &|| ()).unwrap();
    assert_eq!(link.state(), PeerState::Open(PeerState::number_of(&id)));
    let size = bytes.len() as u64;
    let part = PeerPart { memory: memory.binding(), bytes: size };
    for _ in 0..3 {
        link.broadcast_each(std::slice::from_ref(&part), &|| ()).unwrap();
    }
    let mut found: Vec<u8> = Vec::new();
    backend.recorder().read(&[(memory.binding(), size)], |read| found.extend(read)).unwrap();
    assert!(found == bytes);
    link.give_up();
    assert_eq!(link.state(), PeerState::HostOnly);
    assert!(link.broadcast_each(&[part], &|| ()).is_err());
    note!("NCCL: one rank connected, and a transfer kept its bytes");
}

pub fn suite() -> Vec<Test> {
    tests![one_rank_connects_and_keeps_its_bytes]
}
