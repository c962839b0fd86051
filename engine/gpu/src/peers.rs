//! Connection among the devices of the ranks of a model, by which bytes move without the host.

use nestling_core::EngineError;
use nestling_core::group::RankShare;

/// A device's connection to those of the other ranks.
///
/// It only moves bytes. Whether all ranks use it is decided by an exchange of their [`Group`](nestling_core::group::Group)
/// before each transfer, and a transfer that fails is a failure of the rank's step, which the next exchange tells the
/// others. So the group alone decides which ranks fail and which are lost.
pub trait PeerLink<Binding>: Send {
    /// Returns the state, which this rank tells the others before a transfer.
    fn state(&self) -> PeerState;

    /// Returns the id of a new connection. Called on rank 0, which gives it to all ranks.
    ///
    /// # Errors
    /// Returns an error if there can be no connection.
    fn new_id(&mut self) -> Result<Vec<u8>, EngineError>;

    /// Connects the device as the rank that `share` says, after closing an earlier connection. All ranks call it with the
    /// same id. Waits for a limited time, and calls `beat` meanwhile.
    ///
    /// # Errors
    /// Returns an error if the ranks cannot be connected, or not in time.
    fn connect(&mut self, share: RankShare, id: &[u8], beat: &dyn Fn()) -> Result<(), EngineError>;

    /// Copies part `r` of rank `r` to part `r` of every other rank, for all `r`, and waits until this rank has all of
    /// them. All ranks call it, with parts of the same sizes. Waits for a limited time, and calls `beat` meanwhile.
    ///
    /// # Errors
    /// Returns an error if the device or the connection is lost, or if the parts do not arrive in time.
    fn broadcast_each(
        &mut self,
        parts: &[PeerPart<Binding>], // [ranks]
        beat: &dyn Fn(),
    ) -> Result<(), EngineError>;

    /// Closes the connection for good: the state is [`PeerState::HostOnly`] from then on.
    fn give_up(&mut self);
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// There can be none. Bytes move through the host.
    HostOnly,
    /// There is none yet.
    Closed,
    /// There is one, with the number of its id ([`PeerState::number_of`]).
    Open(u64),
}

impl PeerState {
    /// Returns the number of a connection's id.
    pub fn number_of(id: &[u8]) -> u64 {
        // FNV-1a.
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        id.iter().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Returns the state as a message.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::HostOnly => vec![0],
            Self::Closed => vec![1],
            Self::Open(number) => [&[2][..], &number.to_le_bytes()].concat(),
        }
    }

    /// Reads the message of a rank. Returns `None` if it is none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(Self::HostOnly),
            [1] => Some(Self::Closed),
            [2, number @ ..] => Some(Self::Open(u64::from_le_bytes(number.try_into().ok()?))),
            _ => None,
        }
    }
}

/// Device memory of one rank's part of a transfer.
#[derive(Clone, Debug)]
pub struct PeerPart<Binding> {
    /// Memory of the part.
    pub memory: Binding,
    /// Size in bytes, which may be 0.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_they_were_written() {
        for state in [PeerState::HostOnly, PeerState::Closed, PeerState::Open(u64::MAX - 1)] {
            assert_eq!(PeerState::from_bytes(&state.to_bytes()), Some(state));
        }
        for broken in [&[][..], &[3], &[2, 1], &[0, 0], &[2; 10]] {
            assert_eq!(PeerState::from_bytes(broken), None);
        }
    }
}
