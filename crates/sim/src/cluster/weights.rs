//! Which kinds of faults happen how often.

/// Which kinds of faults happen, each as a weight among the others (0: never).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Storage nodes lose power or are killed.
    pub storages: u32,
    /// All services lose power or are killed at once.
    pub all: u32,
    /// Metadata services and managers lose power or are killed.
    pub control: u32,
    /// Links are cut (one way, or a node altogether), slow, or break connections.
    pub network: u32,
    /// Processes are stopped for a while.
    pub freezes: u32,
    /// Disks are slow, return wrong bits, or fail.
    pub disks: u32,
    /// Disks take seconds for every operation, for a while.
    pub slow_disks: u32,
    /// Disks do nothing any more, until their service is started again.
    pub hangs: u32,
    /// Wall clocks jump.
    pub clocks: u32,
    /// Processes of clients end in the middle of their work.
    pub clients: u32,
    /// Second failures while a target is being brought up to date.
    pub resyncs: u32,
    /// Faults of several steps, aimed at one rule each ([`Corner`]).
    pub corners: u32,
    /// A node is drained, and that is called off; a disk is replaced by a new one.
    pub operator: u32,
    /// Weight of nothing happening in a step.
    pub calm: u32,
}

impl Faults {
    /// None.
    pub const NONE: Self = Self {
        storages: 0,
        all: 0,
        control: 0,
        network: 0,
        freezes: 0,
        disks: 0,
        slow_disks: 0,
        hangs: 0,
        clocks: 0,
        clients: 0,
        resyncs: 0,
        corners: 0,
        operator: 0,
        calm: 1,
    };
    /// The same with other weights: `all=6,disks=10`.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (name, weight) =
                part.split_once('=').ok_or_else(|| format!("«{part}»: NAME=WEIGHT"))?;
            let weight = weight.parse().map_err(|e| format!("«{part}»: {e}"))?;
            let place = match name {
                "storages" => &mut self.storages,
                "all" => &mut self.all,
                "control" => &mut self.control,
                "network" => &mut self.network,
                "freezes" => &mut self.freezes,
                "disks" => &mut self.disks,
                "slow_disks" => &mut self.slow_disks,
                "hangs" => &mut self.hangs,
                "clocks" => &mut self.clocks,
                "clients" => &mut self.clients,
                "resyncs" => &mut self.resyncs,
                "corners" => &mut self.corners,
                "operator" => &mut self.operator,
                "calm" => &mut self.calm,
                _ => return Err(format!("«{name}» is not a kind of fault")),
            };
            *place = weight;
        }
        Ok(self)
    }
    /// All.
    pub const ALL: Self = Self {
        storages: 4,
        all: 1,
        control: 2,
        network: 8,
        freezes: 2,
        disks: 2,
        slow_disks: 1,
        hangs: 1,
        clocks: 1,
        clients: 1,
        resyncs: 1,
        corners: 1,
        operator: 1,
        calm: 6,
    };
}
