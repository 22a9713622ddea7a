//! Does one piece of work so many times, for whoever counts its instructions: `count NAME TIMES`; `count` lists the names.
//!
//! The first time happens before: what is done once, such as finding out what the CPU can, is part of the start.

mod works;

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let (Some(name), Some(times)) = (arguments.next(), arguments.next()) else {
        works::works()
            .iter()
            .for_each(|work| println!("{}", work.name));
        return;
    };
    let times: u32 = times.parse().expect("TIMES is a number");
    let mut all = works::works();
    let work = all.iter_mut().find(|work| work.name == name);
    let work = work.expect("NAME is one of those that are listed without arguments");
    (work.once)();
    for _ in 0..times {
        (work.once)();
    }
}
