//! The paths of live rules.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use faultline_daemon::engines::engine::Engine;
use faultline_nic::Instant;
use faultline_scenario::live::{self, LiveLimits, LivePlan};
use faultline_scenario::rules::{LiveRule, LiveState};
use faultline_scenario::value::Time;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{Body, NoQuery, Segment};
use crate::view::ErrorBody;

/// Shortest time between two looks at a rule that ends by its time.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// Longest time, after which also a rule that was removed has no task any more.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A rule to start.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveRuleStart {
    /// The rule.
    pub rule: RuleSource,
    /// It acts at most so often at each NIC, whatever the rule says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// It ends after this number of milliseconds of the device clock, at most a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

/// A rule in the language of scenarios, with the keys `on` and `do`, and by choice `name`, `nic` and `port`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RuleSource {
    /// TOML: as in a scenario. The keys may be on one line.
    Toml(String),
    /// The same as a JSON object.
    Json(serde_json::Map<String, serde_json::Value>),
}

/// State of a live rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LiveRuleState {
    /// It learns the queue pairs that exist.
    Starting,
    /// It runs.
    Running,
    /// Its time is over, and what it has changed is undone.
    Ended,
}

/// What a rule has not acted on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissView {
    /// The key of the rule that did not hold, or the keys.
    pub keys: String,
    /// How often all conditions before it held, and it did not.
    pub count: u64,
}

/// A live rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveRuleView {
    /// Id, from 1.
    pub id: u16,
    /// Name: as the rule has it, else `live rule` and the id.
    pub name: String,
    /// The rule (TOML).
    pub rule: String,
    /// State.
    pub state: LiveRuleState,
    /// How often it has acted, over all NICs.
    pub acted: u64,
    /// How often something has matched, over all NICs; `null`: it is counted inside the NIC, as that of faults and completions.
    pub matched: Option<u64>,
    /// The nearest miss; `null`: there was none, or the NIC counts.
    pub nearest: Option<MissView>,
    /// Nanoseconds of the device clock since it has begun.
    pub running_ns: u64,
    /// Nanoseconds of the device clock until it ends; `null`: when it is removed.
    pub left_ns: Option<u64>,
    /// What could not be done.
    pub problems: Vec<String>,
}

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(list, start))
        .routes(routes!(remove))
}

fn view(rule: LiveRule, now: Instant) -> LiveRuleView {
    let state = match rule.state {
        LiveState::Starting => LiveRuleState::Starting,
        LiveState::Running => LiveRuleState::Running,
        LiveState::Ended => LiveRuleState::Ended,
    };
    let at = match (state, rule.until) {
        (LiveRuleState::Ended, Some(until)) => now.min(until),
        _ => now,
    };
    LiveRuleView {
        id: rule.number,
        name: rule.name,
        rule: rule.text,
        state,
        acted: rule.acted,
        matched: rule.matched,
        nearest: rule.nearest.map(|miss| MissView {
            keys: miss.keys.to_owned(),
            count: miss.count,
        }),
        running_ns: at.0.saturating_sub(rule.start.0),
        left_ns: rule.until.map(|until| until.0.saturating_sub(at.0)),
        problems: rule.problems,
    }
}

fn show(engine: &Engine, number: u16) -> Option<LiveRuleView> {
    let rule = engine.fabric.rules.live_rule(number)?;
    Some(view(rule, engine.now()))
}

/// Live rules: those that have ended by their time, then those that run, in the order of their start.
#[utoipa::path(get, path = "/v1/rules", tag = "rules", operation_id = "list_rules",
    responses((status = 200, body = Vec<LiveRuleView>), (status = "4XX", body = ErrorBody)))]
async fn list(
    State(access): State<Access>,
    _: NoQuery,
) -> Result<Json<Vec<LiveRuleView>>, ApiError> {
    let work = |engine: &mut Engine| {
        let now = engine.now();
        let rules = engine.fabric.rules.live().into_iter();
        rules.map(|rule| view(rule, now)).collect()
    };
    access.call_first(work).await.map(Json)
}

/// Reads and checks the rule of a request.
fn plan(access: &Access, start: LiveRuleStart) -> Result<LivePlan, ApiError> {
    let text = match start.rule {
        RuleSource::Toml(text) => text,
        RuleSource::Json(table) => {
            live::text_of(&table).map_err(|error| ApiError::bad(format!("body: rule: {error}")))?
        }
    };
    let limits = LiveLimits {
        count: start.count,
        lasts: start.for_ms.map(Time::from_millis),
    };
    live::plan(&text, limits, &access.names, &access.externals)
        .map_err(|problems| ApiError::bad(problems.draw(false)))
}

/// Starts a rule, and waits until it runs. A rule that does not begin in time is removed.
async fn begin(access: Access, plan: LivePlan) -> Result<LiveRuleView, ApiError> {
    let (tell, mut started) = oneshot::channel();
    let start = move |engine: &mut Engine| {
        // If the request was given up, no client knows its number.
        if let Err(Ok(number)) = tell.send(engine.start_live_rule(plan)) {
            engine.remove_live_rule(number);
        }
    };
    let called = access.call_gathered(start).await;
    started.close();
    let number = match started.try_recv() {
        Ok(started) => started.map_err(|error| ApiError::conflict(error.to_string()))?,
        Err(_) => return Err(called.err().unwrap_or_else(ApiError::engine_ended)),
    };
    let begun = match called {
        Ok(()) => take_steps(&access, number).await,
        Err(error) => Err(error),
    };
    if begun.is_err() {
        access.post_gathered(move |engine| {
            engine.remove_live_rule(number);
        });
    }
    let begun =
        begun?.ok_or_else(|| ApiError::conflict("the rule was removed before it had begun"))?;
    if let Some(left) = begun.left_ns {
        tokio::spawn(move_home_at_end(access, number, left));
    }
    Ok(begun)
}

/// Waits until a rule has ended by its time, or was removed. Then the NICs return to their own engines, unless something else needs all
/// of them in one. `left_ns`: nanoseconds of the device clock until its end. The clock stands still during pauses.
async fn move_home_at_end(access: Access, number: u16, mut left_ns: u64) {
    loop {
        let left = Duration::from_nanos(left_ns);
        tokio::time::sleep(left.clamp(SHORTEST_WAIT, LONGEST_WAIT)).await;
        match access.call_first(move |engine| show(engine, number)).await {
            Ok(Some(rule)) if rule.state != LiveRuleState::Ended => {
                left_ns = rule.left_ns.unwrap_or(u64::MAX);
            }
            Ok(_) => break,
            // The engine is busy, or has ended with the process.
            Err(_) => left_ns = u64::MAX,
        }
    }
    access.post_gathered(|_| ());
}

/// Executes the steps after which a rule runs. `None`: it was removed meanwhile.
async fn take_steps(access: &Access, number: u16) -> Result<Option<LiveRuleView>, ApiError> {
    let step = move |engine: &mut Engine| engine.prepare_live_rule(number);
    while !access.call_first(step).await? {}
    access.call_first(move |engine| show(engine, number)).await
}

/// Starts a rule on the NICs of the process, beside a scenario or without one.
#[utoipa::path(post, path = "/v1/rules", tag = "rules", operation_id = "start_rule",
    request_body = LiveRuleStart,
    responses((status = 200, body = LiveRuleView), (status = "4XX", body = ErrorBody)))]
async fn start(
    State(access): State<Access>,
    _: NoQuery,
    Body(start): Body<LiveRuleStart>,
) -> Result<Json<LiveRuleView>, ApiError> {
    let plan = plan(&access, start)?;
    // A task of its own: the rule begins even if the client closes its connection.
    let begun = tokio::spawn(begin(access, plan)).await;
    let begun = begun.map_err(|_| ApiError::engine_ended())??;
    tracing::info!(
        id = begun.id,
        name = begun.name,
        rule = begun.rule,
        "live rule started by request"
    );
    Ok(Json(begun))
}

/// Removes a rule: what its actions have changed is as before, and what it has kept is passed. Returns its last state.
#[utoipa::path(delete, path = "/v1/rules/{id}", tag = "rules", operation_id = "remove_rule",
    params(("id" = u16, Path, description = "Id of the rule.")),
    responses((status = 200, body = LiveRuleView), (status = "4XX", body = ErrorBody)))]
async fn remove(
    State(access): State<Access>,
    Segment(id): Segment<u16>,
    _: NoQuery,
) -> Result<Json<LiveRuleView>, ApiError> {
    let work = move |engine: &mut Engine| {
        let removed = engine.remove_live_rule(id)?;
        Some(view(removed, engine.now()))
    };
    let removed = access.call_gathered(work).await?;
    let removed = removed.ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, format!("there is no live rule {id}"))
    })?;
    tracing::info!(
        id,
        name = removed.name,
        acted = removed.acted,
        "live rule removed by request"
    );
    Ok(Json(removed))
}
