use super::*;

/// A shell that runs `script`.
fn shell(name: &str, script: &str, takes_lines: bool) -> Spec {
    let args = vec!["-c".into(), script.into()];
    Spec { name: name.to_owned(), program: "/bin/sh".into(), args, ready: Ready::Line, takes_lines }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("hicached-fleet-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

async fn next(fleet: &mut Fleet) -> Event {
    timeout_at(Instant::now() + Duration::from_secs(20), fleet.next()).await.expect("in time").expect("no fault")
}

#[tokio::test]
async fn lines_go_in_and_come_out_and_the_end_comes_last() {
    let scratch = Scratch::new();
    let mut fleet = Fleet::new(&scratch.0, 1);
    let echo = fleet.add(shell("echo", "echo ready; echo oops >&2; while read line; do echo got $line; done", true));
    fleet.start(echo).unwrap();
    fleet.ready(&[echo], Duration::from_secs(20), |_, _| ()).await.unwrap();
    assert!(fleet.all_serve() && fleet.write(echo, "7".to_owned()));
    assert!(matches!(next(&mut fleet).await, Event::Line(0, line) if line == "got 7"));
    assert!(fleet.write(echo, "8".to_owned()));
    fleet.end_input(echo);
    assert!(matches!(next(&mut fleet).await, Event::Line(0, line) if line == "got 8"));
    assert!(matches!(next(&mut fleet).await, Event::Ended { asked: true, .. }));
    assert_eq!(fleet.members()[echo].state(), State::Over);
    assert_eq!(fleet.log_end(echo), "echo: oops");
}

#[tokio::test]
async fn what_is_killed_lives_again_with_the_arguments_of_one_life() {
    let scratch = Scratch::new();
    let mut fleet = Fleet::new(&scratch.0, 1);
    let place = fleet.add(shell("sleeper", "echo life $0; echo ready; printf half; exec sleep 1000", false));
    fleet.start(place).unwrap();
    for life in 1..=3 {
        if life == 2 {
            fleet.next_args(place, vec!["special".into()]);
        }
        if life > 1 {
            assert!(fleet.kill(place) && !fleet.kill(place), "once in a life");
            assert!(matches!(next(&mut fleet).await, Event::Ended { asked: true, .. }), "half a line is none");
            assert!(matches!(next(&mut fleet).await, Event::Started(0)));
        }
        let Event::Line(0, line) = next(&mut fleet).await else { panic!("a line of life {life}") };
        assert_eq!(line == "life special", life == 2, "{line}");
        assert!(matches!(next(&mut fleet).await, Event::Ready(0)));
    }
    let member = &fleet.members()[place];
    assert_eq!((member.life(), member.restarts, member.crashes), (3, 2, 0));
    fleet.sample();
    assert!(fleet.members()[place].memory.peak_bytes > 0);
    assert!(fleet.stop(&[place], Duration::from_secs(20)).await.is_empty(), "SIGTERM was enough");
}

#[tokio::test]
async fn what_ends_by_itself_is_counted_and_given_up_in_the_end() {
    let scratch = Scratch::new();
    let mut fleet = Fleet::new(&scratch.0, 1);
    let place = fleet.add(shell("weak", "echo ready; echo no >&2; exit 3", false));
    fleet.start(place).unwrap();
    let mut ends = 0;
    for _ in 0..5 {
        if let Event::Ended { asked, status, .. } = next(&mut fleet).await {
            assert_eq!((asked, status.code()), (false, Some(3)));
            ends += 1;
        }
    }
    assert_eq!(
        (fleet.members()[place].crashes, fleet.members()[place].restarts),
        (ends, ends - 1 + u64::from(ends == 1))
    );
    let never = fleet.add(shell("never", "echo why >&2; exit 2", false));
    fleet.start(never).unwrap();
    let error = loop {
        match fleet.next().await {
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("never ended 1 times") && error.contains("why"), "{error}");
}

#[tokio::test]
async fn what_does_not_end_when_asked_is_killed() {
    let scratch = Scratch::new();
    let mut fleet = Fleet::new(&scratch.0, 1);
    let place = fleet.add(shell("deaf", "trap '' TERM; echo ready; while :; do sleep 0.05; done", false));
    fleet.start(place).unwrap();
    fleet.ready(&[place], Duration::from_secs(20), |_, _| ()).await.unwrap();
    let pid = fleet.members()[place].pid().unwrap();
    assert_eq!(fleet.stop(&[place], Duration::from_millis(100)).await, ["deaf"]);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}
