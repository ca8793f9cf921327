//! The RPCs of the gRPC front, from the files in `proto`.

use divvy_access::Category;

include!(concat!(env!("OUT_DIR"), "/rpcs.rs"));

impl Rpc {
    /// Returns the RPC with this path.
    pub fn find(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rpc| rpc.path() == path)
    }

    /// Returns the name of its service.
    pub fn service(self) -> &'static str {
        self.path().split('/').nth(1).unwrap_or_default()
    }

    /// Returns the category of its calls.
    pub fn category(self) -> Category {
        match self {
            Self::EnvoyShouldRateLimit
            | Self::KuadrantCheckRateLimit
            | Self::KuadrantReport
            | Self::KuadrantReserve
            | Self::KuadrantCommit => Category::Hit,
        }
    }
}
