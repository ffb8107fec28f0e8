//! Plans that are a little smaller than another.

use faultline_nic::FaultPolicy;

use super::plan::{Flow, Plan, PlanNic, Request, Transport};

impl Plan {
    /// Runs that are a little smaller, the most reduced first.
    pub fn smaller(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                found.push(plan);
            }
        };
        add(&|plan| plan.rules.clear());
        for index in 0..self.rules.len() {
            add(&|plan| {
                plan.rules.remove(index);
            });
        }
        add(&|plan| plan.events.clear());
        add(&|plan| plan.port = None);
        for index in 0..self.flows.len() {
            if self.flows.len() > 1 {
                add(&|plan| {
                    plan.flows.remove(index);
                });
            }
        }
        for index in 0..self.events.len() {
            add(&|plan| {
                plan.events.remove(index);
            });
        }
        for index in 0..self.nics.len() {
            add(&|plan| without_nic(plan, index));
            add(&|plan| on_nic(plan, index, |nic| nic.links = [None, None]));
            add(&|plan| on_nic(plan, index, |nic| nic.links[0] = None));
            add(&|plan| on_nic(plan, index, |nic| nic.links[1] = None));
            add(&|plan| on_nic(plan, index, |nic| nic.on_demand = false));
            add(&|plan| on_nic(plan, index, |nic| nic.policy = FaultPolicy::Rnr));
            add(&|plan| on_nic(plan, index, |nic| nic.fault_depth = 8));
            add(&|plan| on_nic(plan, index, |nic| nic.pager_fails = false));
            add(&|plan| on_nic(plan, index, |nic| nic.congestion = false));
            add(&|plan| on_nic(plan, index, |nic| nic.is_trunk = false));
            add(&|plan| on_nic(plan, index, |nic| nic.engine = 0));
            add(&|plan| on_nic(plan, index, |nic| nic.process = 0));
        }
        add(&|plan| {
            if let Some(port) = &mut plan.port {
                (port.links, port.pace) = ([None, None], 0);
            }
        });
        add(&|plan| plan.engines = 1);
        add(&|plan| plan.nics.iter_mut().for_each(|nic| nic.vlan = None));
        add(&|plan| without_iwarp(plan));
        for index in 0..self.flows.len() {
            add(&|plan| {
                on_flow(plan, index, |flow| {
                    let half = flow.requests.len().div_ceil(2);
                    flow.requests.truncate(half);
                })
            });
            add(&|plan| {
                on_flow(plan, index, |flow| {
                    let half = flow.requests.len() / 2;
                    if half > 0 {
                        flow.requests.drain(..half);
                    }
                })
            });
            add(&|plan| on_flow(plan, index, |flow| flow.ecn = false));
            add(&|plan| on_flow(plan, index, |flow| flow.requests.iter_mut().for_each(halve)));
            for request in 0..self.flows.get(index).map_or(0, |flow| flow.requests.len()) {
                add(&|plan| {
                    on_flow(plan, index, |flow| {
                        if flow.requests.len() > 1 {
                            flow.requests.remove(request);
                        }
                    })
                });
            }
        }
        found
    }
}

impl Plan {
    /// The same with links that lose, repeat and reorder other packets; 0: no others.
    pub fn with_other_links(&self, change: u64) -> Self {
        let mut plan = self.clone();
        let nics = plan.nics.iter_mut().flat_map(|nic| &mut nic.links);
        let ports = plan.port.iter_mut().flat_map(|port| &mut port.links);
        for link in nics.chain(ports).flatten() {
            link.seed = link.seed.wrapping_add(change);
        }
        plan
    }
}

/// Connections of iWARP become those of RC.
fn without_iwarp(plan: &mut Plan) {
    plan.nics.iter_mut().for_each(|nic| nic.is_iwarp = false);
    let flows = plan.flows.iter_mut();
    for flow in flows.filter(|flow| flow.transport == Transport::Iwarp) {
        flow.transport = Transport::Rc;
    }
}

/// Removes a NIC without flows.
fn without_nic(plan: &mut Plan, index: usize) {
    let is_used = |flow: &Flow| flow.from == index || flow.to == index;
    if plan.flows.iter().any(is_used) || plan.nics.len() <= 2 {
        return;
    }
    plan.nics.remove(index);
    plan.events.retain(|event| event.nic != index);
    plan.rules.retain(|rule| rule.nic != index);
    let lower = |nic: &mut usize| {
        if *nic > index {
            *nic = nic.saturating_sub(1);
        }
    };
    for flow in &mut plan.flows {
        lower(&mut flow.from);
        lower(&mut flow.to);
    }
    for event in &mut plan.events {
        lower(&mut event.nic);
    }
    for rule in &mut plan.rules {
        lower(&mut rule.nic);
    }
}

fn on_nic(plan: &mut Plan, index: usize, change: impl Fn(&mut PlanNic)) {
    if let Some(nic) = plan.nics.get_mut(index) {
        change(nic);
    }
}

fn on_flow(plan: &mut Plan, index: usize, change: impl Fn(&mut Flow)) {
    if let Some(flow) = plan.flows.get_mut(index) {
        change(flow);
    }
}

fn halve(request: &mut Request) {
    if let Request::Write(_, len) | Request::Read(_, len) | Request::Send(_, len) = request {
        *len = len.div_ceil(2);
    }
}
