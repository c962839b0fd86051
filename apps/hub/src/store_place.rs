//! Places of stores that are read by ranges: an address on the web, or a file on the Hub.

use crate::client::{Client, RequestError};
use crate::error::HubError;
use crate::names::{is_commit, is_path};
use crate::options::WebAccess;
use crate::origin::Origin;
use crate::repository::Repository;
use crate::shard_names::{ShardName, shards_of};
use crate::store_address::StoreAddress;
use nestling_formats::store::StoreError;

/// Place of a store, or of one of its shards.
#[derive(Clone, Debug)]
pub enum StorePlace {
    Address(StoreAddress),
    Repository(RepositoryFile),
}

/// A file of a repository at a commit.
#[derive(Clone, Debug)]
pub struct RepositoryFile {
    pub origin: Origin,
    /// Address of the Hub.
    pub endpoint: String,
}

impl StorePlace {
    /// Returns the place of a file on the Hub, or `None` if the names are not safe in addresses.
    pub fn of_repository(origin: Origin, endpoint: &str) -> Option<Self> {
        let is_safe = Repository::new(&origin.repository, "main").is_ok()
            && is_commit(&origin.commit)
            && is_path(&origin.file);
        is_safe.then(|| Self::Repository(RepositoryFile { origin, endpoint: endpoint.to_owned() }))
    }

    /// Returns the address of the file.
    pub fn address(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Repository(RepositoryFile { origin, endpoint }) => {
                let Origin { repository, commit, file } = origin;
                format!("{endpoint}/{repository}/resolve/{commit}/{file}")
            }
        }
    }

    /// Returns the name of the file without its folders.
    pub fn file_name(&self) -> &str {
        match self {
            Self::Address(address) => address.file_name(),
            Self::Repository(RepositoryFile { origin, .. }) => {
                // Default: a path without a slash is a name.
                origin.file.rsplit_once('/').map_or(&*origin.file, |(_, name)| name)
            }
        }
    }

    /// Returns the number of files of the store, by the name of its first.
    pub fn shards(&self) -> u32 {
        shards_of(self.file_name())
    }

    /// Returns the place of a shard, numbered from 1. A single file is its own first shard.
    pub fn shard(&self, number: u32) -> Self {
        match self {
            Self::Address(address) => Self::Address(address.shard(number)),
            Self::Repository(file) => {
                let mut file = file.clone();
                if let Some(name) = ShardName::parse(&file.origin.file) {
                    file.origin.file = name.sibling(number);
                }
                Self::Repository(file)
            }
        }
    }

    /// Returns the record of a file on the Hub.
    pub fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Address(_) => None,
            Self::Repository(file) => Some(&file.origin),
        }
    }

    /// Returns a client, whose token only the Hub receives.
    pub fn client(&self, access: &WebAccess) -> Client {
        let token = access.token.clone().filter(|_| matches!(self, Self::Repository(_)));
        Client::new(token, access.limits)
    }

    /// Returns the host or the Hub, for messages.
    fn server(&self) -> &str {
        match self {
            Self::Address(address) => address.host(),
            Self::Repository(file) => &file.endpoint,
        }
    }

    /// Describes a failed request for the file.
    pub fn explain(&self, trouble: RequestError) -> HubError {
        let (server, file) = (self.server(), self.file_name());
        let what = self.address();
        match trouble {
            RequestError::Failed(failure) => failure,
            RequestError::Changed if self.shards() > 1 => {
                self.not_shard("it has changed on the server")
            }
            RequestError::Status(404 | 410) if self.shards() > 1 => {
                self.not_shard(&format!("{server} has no such file"))
            }
            RequestError::Changed => HubError::new(format!("{what} has changed on the server"))
                .advise("start again, and the new file is fetched"),
            RequestError::Unreachable(reason) => {
                HubError::new(format!("{server} cannot be reached: {reason}"))
                    .advise("try again; what has arrived is kept")
            }
            RequestError::Status(401 | 403) => {
                let failure = HubError::new(format!("{server} refuses access to {file}"));
                failure.advise(match self {
                    Self::Address(_) => "check the address; credentials cannot be given",
                    Self::Repository(_) => "for a gated model, accept its terms and set HF_TOKEN",
                })
            }
            RequestError::Status(404 | 410) => {
                HubError::new(format!("{server} has no file {file}")).advise("check the address")
            }
            RequestError::Status(status) => {
                HubError::new(format!("{server} answers with status {status}"))
                    .advise("try again later; what has arrived is kept")
            }
        }
    }

    /// Returns an error that names the shard.
    pub fn not_shard(&self, reason: &str) -> HubError {
        let name = ShardName::parse(self.file_name());
        // Default: a single file is its own only shard.
        let (shard, shards) = name.map_or((1, 1), |name| (name.number, name.total));
        let (file, reason) = (self.address(), reason.to_owned());
        StoreError::Shard { file, shard, shards, reason }.into()
    }
}
