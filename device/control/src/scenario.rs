//! The paths of scenarios.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use faultline_nic::Nanos;
use faultline_scenario::file::Scenario;
use faultline_scenario::plan::Plan;
use faultline_scenario::problem::Problems;
use faultline_scenario::profile::{self, is_path};
use faultline_scenario::read::{MAX_BYTES, read};
use faultline_scenario::rules::Fired;
use faultline_scenario::verdict::{Check, judge_packets};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::check::RunningCheck;
use crate::error::ApiError;
use crate::extract::{Body, NoQuery, Segment};
use crate::view::ErrorBody;
use faultline_capture::frame_checker::FrameChecker;
use faultline_daemon::engines::engine::Engine;
use faultline_daemon::engines::scenario::{EndedScenario, RunnerTasks, StoppedScenario};

/// A scenario to start.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioStart {
    /// Name of the file, for messages.
    pub name: String,
    /// The file's text (TOML).
    pub text: String,
    /// Seed instead of the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The text of the profile (TOML), if the file names one by its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Limit of the run in milliseconds instead of the file's, at most a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ms: Option<u64>,
    /// Who starts it is its runner: it carries out the `tasks` of the scenario in the guests, and reports each as done. Without a
    /// runner, actions that only a guest can carry out (`move_gid`) are problems of the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runner: bool,
}

/// An action that only software in a guest can carry out. It waits for the runner of the scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Id, for the report that it is done.
    pub id: u64,
    /// Name of the guest's NIC.
    pub nic: String,
    /// Number of the NIC, from 0, in the order of the configuration.
    pub index: u64,
    /// What is to be done: `move_gids`: move the addresses of the NIC's network device to other entries of the GID table.
    pub action: String,
}

/// The end of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskDone {
    /// Why it could not be carried out. The run fails then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A name to signal.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// The name, as triggers have it in `signal`.
    pub name: String,
}

/// A rule or a timed action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleView {
    /// Name.
    pub name: String,
    /// How often it has acted.
    pub fired: u64,
    /// How often it must have at the end: a range such as `1..`.
    pub expected: String,
}

/// A scenario that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScenarioView {
    /// Name of the file.
    pub name: String,
    /// Nanoseconds of the device clock since its start.
    pub running_ns: u64,
    /// The action `end` has ended the run: its rules do nothing more, and DELETE returns the verdict.
    pub ended: bool,
    /// Rules, then timed actions, in the order of the file.
    pub rules: Vec<RuleView>,
    /// What waits for the runner of the scenario, the oldest first.
    pub tasks: Vec<TaskView>,
    /// What could not be done.
    pub problems: Vec<String>,
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckView {
    /// Rule, timed action or expectation.
    pub name: String,
    /// It holds.
    pub passed: bool,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

/// What has come of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerdictView {
    /// Name of the file.
    pub name: String,
    /// Everything holds, and there was no problem.
    pub passed: bool,
    /// Nanoseconds of the device clock from start to stop.
    pub time_ns: u64,
    /// Rules, timed actions, expectations.
    pub checks: Vec<CheckView>,
    /// What could not be done.
    pub problems: Vec<String>,
}

/// Longest limit of a run: a day.
const MAX_LIMIT_MS: u64 = 24 * 3600 * 1000;
/// Longest body of a request in bytes: the longest file, in which each character may be escaped, and its name.
const MAX_BODY: usize = 2 * MAX_BYTES + (64 << 10);

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(show, start, stop))
        .routes(routes!(signal))
        .routes(routes!(task_done))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(Extension(Arc::<ScenarioChecks>::default()))
}

/// The packet checker of a scenario that expects something of violations, with its plan.
#[derive(Debug, Default)]
struct ScenarioChecks(Mutex<Option<(RunningCheck, Plan)>>);

fn none_runs() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no scenario runs")
}

fn view(engine: &Engine) -> Option<ScenarioView> {
    if let Some(ended) = &engine.ended_scenario {
        let EndedScenario { stopped, fired } = &**ended;
        return Some(ScenarioView {
            name: stopped.name.clone(),
            running_ns: stopped.time.0,
            ended: true,
            rules: fired.iter().map(RuleView::from).collect(),
            problems: stopped.verdict.problems.clone(),
            tasks: Vec::new(),
        });
    }
    let running = engine.scenario.as_ref()?;
    let rules = engine.fabric.rules.scenario()?;
    let tasks = running.runner.iter().flat_map(RunnerTasks::pending);
    let tasks = tasks.map(|(id, task)| TaskView {
        id,
        nic: engine
            .io
            .nics
            .get(task.nic)
            .map_or_else(String::new, |io| io.name().to_owned()),
        index: u64::try_from(task.nic).unwrap_or(u64::MAX),
        action: task.action.name().to_owned(),
    });
    Some(ScenarioView {
        name: running.name.clone(),
        running_ns: engine.now().0.saturating_sub(rules.start().0),
        ended: rules.has_ended(),
        rules: rules.fired().iter().map(RuleView::from).collect(),
        tasks: tasks.collect(),
        problems: rules.problems().to_vec(),
    })
}

/// The scenario that runs.
#[utoipa::path(get, path = "/v1/scenario", tag = "scenario", operation_id = "show_scenario",
    responses((status = 200, body = ScenarioView), (status = "4XX", body = ErrorBody)))]
async fn show(State(access): State<Access>, _: NoQuery) -> Result<Json<ScenarioView>, ApiError> {
    let view = access.call_first(|engine| view(engine)).await?;
    view.map(Json).ok_or_else(none_runs)
}

/// Refuses a scenario whose profile is not that of all NICs: a NIC has its profile from its creation on.
fn check_profile(access: &Access, scenario: &Scenario, text: Option<&str>) -> Result<(), ApiError> {
    let Some(name) = &scenario.profile else {
        return Ok(());
    };
    let wanted = match text {
        Some(text) if is_path(name) => profile::read(name, text).map_err(|p| p.draw(false)),
        None if is_path(name) => Err(format!(
            "profile = {name:?} is the path of a file: give its text in \"profile\""
        )),
        _ => profile::by_name(name),
    };
    let wanted = wanted.map_err(ApiError::bad)?;
    for (nic, profile) in access.names.iter().zip(access.profiles.iter()) {
        let found = match profile {
            Some((_, profile)) if *profile == wanted => continue,
            Some((name, _)) => format!("{name:?}"),
            None => "none".to_owned(),
        };
        return Err(ApiError::conflict(format!(
            "the scenario needs NICs with the profile {name:?}, but that of NIC {nic} is {found}: start faultline serve with --profile {name}"
        )));
    }
    Ok(())
}

/// Starts a scenario on the NICs of the process, which must have its profile. Its simulated hosts, traffic and programs are not
/// used.
#[utoipa::path(post, path = "/v1/scenario", tag = "scenario", operation_id = "start_scenario",
    request_body = ScenarioStart,
    responses((status = 200, body = ScenarioView), (status = "4XX", body = ErrorBody)))]
async fn start(
    State(access): State<Access>,
    Extension(checks): Extension<Arc<ScenarioChecks>>,
    _: NoQuery,
    Body(file): Body<ScenarioStart>,
) -> Result<Json<ScenarioView>, ApiError> {
    let wrong = |problems: Problems| ApiError::bad(problems.draw(false));
    let mut scenario = read(&file.name, &file.text).map_err(wrong)?;
    scenario.seed = file.seed.unwrap_or(scenario.seed);
    let mut plan = scenario
        .plan(&access.names, &access.externals)
        .map_err(|problems| wrong(Problems::new(&file.name, &file.text, problems)))?;
    check_profile(&access, &scenario, file.profile.as_deref())?;
    if let Some(limit) = file.limit_ms {
        if !(1..=MAX_LIMIT_MS).contains(&limit) {
            return Err(ApiError::bad(format!(
                "body: limit_ms: {limit} is out of range: 1 to {MAX_LIMIT_MS} is allowed"
            )));
        }
        plan.limit = Nanos::from_millis(limit);
    }
    // Before the scenario, so that the checker misses none of its packets.
    let checked = match plan.checks_packets() {
        true => Some((RunningCheck::start(&access, false).await?, plan.clone())),
        false => None,
    };
    tracing::info!(name = file.name, "scenario started by request");
    let work = move |engine: &mut Engine| {
        let started = engine.start_scenario(file.name, plan, file.runner);
        (started, view(engine))
    };
    match access.call_gathered(work).await? {
        (true, _) => {
            // One that is left from a scenario that was given up ends here.
            *checks.0.lock().await = checked;
            begin(access).await.map(Json)
        }
        (_, view) => {
            let name = view.map(|view| view.name).unwrap_or_default();
            Err(ApiError::conflict(format!(
                "scenario {name:?} runs, or has ended and its verdict was not read: stop it first (`faultline ctl scenario stop`, or DELETE /v1/scenario)"
            )))
        }
    }
}

/// Lets the rules learn the queue pairs that exist, until the scenario has begun. Each request to the engine is a short step, so that
/// the NICs go on meanwhile, however many queue pairs they have.
async fn begin(access: Access) -> Result<ScenarioView, ApiError> {
    // A task of its own: the steps go on even if the client closes its connection.
    let steps = tokio::spawn(async move {
        while !access.call_first(Engine::prepare_scenario).await? {}
        access.call_first(|engine| view(engine)).await
    });
    let begun = steps.await.map_err(|_| ApiError::engine_ended())?;
    begun?.ok_or_else(|| ApiError::conflict("the scenario was stopped before it had begun"))
}

/// Ends the scenario, and says what has come of it.
#[utoipa::path(delete, path = "/v1/scenario", tag = "scenario", operation_id = "stop_scenario",
    responses((status = 200, body = VerdictView), (status = "4XX", body = ErrorBody)))]
async fn stop(
    State(access): State<Access>,
    Extension(checks): Extension<Arc<ScenarioChecks>>,
    _: NoQuery,
) -> Result<Json<VerdictView>, ApiError> {
    let stopped = access.call_gathered(Engine::stop_scenario).await?;
    let mut stopped = stopped.ok_or_else(none_runs)?;
    let checked = checks.0.lock().await.take();
    if let Some((checker, plan)) = checked {
        let look = move |frame_checker: &FrameChecker| judged(&plan, frame_checker);
        let checks = checker.stop(&access, look).await?;
        stopped.verdict.checks.extend(checks);
    }
    tracing::info!(name = stopped.name, "scenario stopped by request");
    Ok(Json(stopped.into()))
}

/// The expectations of violations, by what the packet checker has found.
fn judged(plan: &Plan, frame_checker: &FrameChecker) -> Vec<Check> {
    let mut checks = judge_packets(plan, frame_checker.checker());
    if frame_checker.lost() > 0 {
        let lost = format!("; {} frames were not judged", frame_checker.lost());
        checks.iter_mut().for_each(|check| check.found += &lost);
    }
    checks
}

/// Signals a name to the scenario.
#[utoipa::path(post, path = "/v1/scenario/signals", tag = "scenario", operation_id = "signal_scenario",
    request_body = Signal,
    responses((status = 204, description = "Done"), (status = "4XX", body = ErrorBody)))]
async fn signal(
    State(access): State<Access>,
    _: NoQuery,
    Body(signal): Body<Signal>,
) -> Result<StatusCode, ApiError> {
    let name = signal.name.clone();
    let work = move |engine: &mut Engine| {
        let now = engine.now();
        let rules = &mut engine.fabric.rules;
        (!rules.is_empty()).then(|| rules.signal(now, &name))
    };
    match access.call_first(work).await? {
        None => Err(none_runs()),
        Some(true) => Ok(StatusCode::NO_CONTENT),
        Some(false) => Err(ApiError::bad(format!(
            "body: no rule has the trigger signal = {:?}",
            signal.name
        ))),
    }
}

/// Reports that the runner has carried out a task, or could not.
#[utoipa::path(post, path = "/v1/scenario/tasks/{id}", tag = "scenario", operation_id = "finish_scenario_task",
    params(("id" = u64, Path, description = "Id of the task.")), request_body = TaskDone,
    responses((status = 204, description = "Noted"), (status = "4XX", body = ErrorBody)))]
async fn task_done(
    State(access): State<Access>,
    Segment(id): Segment<u64>,
    _: NoQuery,
    Body(done): Body<TaskDone>,
) -> Result<StatusCode, ApiError> {
    let work = move |engine: &mut Engine| engine.runner_task_done(id, done.error.as_deref());
    match access.call_first(work).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            format!("no task {id} of a scenario waits"),
        )),
    }
}

impl From<&Fired> for RuleView {
    fn from(fired: &Fired) -> Self {
        Self {
            name: fired.name.clone(),
            fired: fired.times,
            expected: fired.expected.to_string(),
        }
    }
}

impl From<Check> for CheckView {
    fn from(check: Check) -> Self {
        Self {
            name: check.name,
            passed: check.passed,
            found: check.found,
            expected: check.expected,
        }
    }
}

impl From<StoppedScenario> for VerdictView {
    fn from(stopped: StoppedScenario) -> Self {
        let StoppedScenario {
            name,
            time,
            verdict,
        } = stopped;
        Self {
            name,
            passed: verdict.passed(),
            time_ns: time.0,
            checks: verdict.checks.into_iter().map(CheckView::from).collect(),
            problems: verdict.problems,
        }
    }
}
