//! A screen that is redrawn without flicker.

use std::io::{IsTerminal, Stdout, Write, stdin, stdout};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, EventStream, KeyCode, KeyModifiers};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use futures_util::StreamExt;

/// The terminal's alternate screen, and its keys when standard input is the terminal too. Dropping it restores the
/// terminal.
pub(super) struct Screen {
    out: Stdout,
    has_colors: bool,
    keys: Option<EventStream>,
}

/// The next action.
pub(super) enum Next {
    /// Refresh.
    Look,
    /// The user quits.
    Quit,
}

impl Screen {
    pub(super) fn open() -> std::io::Result<Self> {
        let mut screen = Self {
            out: stdout(),
            has_colors: AutoStream::choice(&stdout()) != ColorChoice::Never,
            keys: None,
        };
        if stdin().is_terminal() {
            enable_raw_mode()?;
            screen.keys = Some(EventStream::new());
        }
        execute!(screen.out, EnterAlternateScreen, Hide, DisableLineWrap)?;
        Ok(screen)
    }

    /// Overwrites the previous text. Nothing is cleared first, so nothing flickers.
    pub(super) fn draw(&mut self, text: &str) -> std::io::Result<()> {
        // Some terminals do not report their size.
        let rows = match size() {
            Ok((_, rows)) if rows > 0 => usize::from(rows),
            _ => 24,
        };
        queue!(self.out, BeginSynchronizedUpdate, MoveTo(0, 0))?;
        let plain = strip_str(text).to_string();
        let text = if self.has_colors { text } else { &plain };
        let footer = if self.keys.is_some() { "q quits" } else { "" };
        let lines = text.lines().chain(["", footer]);
        for (row, line) in lines.take(rows).enumerate() {
            if row > 0 {
                write!(self.out, "\r\n")?;
            }
            write!(self.out, "{line}")?;
            queue!(self.out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(self.out, Clear(ClearType::FromCursorDown), EndSynchronizedUpdate)?;
        self.out.flush()
    }

    /// Waits this long, or until a key or a new terminal size requires an action.
    pub(super) async fn next(&mut self, wait: Duration) -> Next {
        let Some(keys) = &mut self.keys else {
            tokio::time::sleep(wait).await;
            return Next::Look;
        };
        let pressed = async {
            loop {
                match keys.next().await {
                    Some(Ok(Event::Key(key))) => {
                        let interrupt = key.modifiers.contains(KeyModifiers::CONTROL)
                            && matches!(key.code, KeyCode::Char('c' | 'd'));
                        if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                            return Next::Quit;
                        }
                    }
                    Some(Ok(Event::Resize(..))) => return Next::Look,
                    Some(Ok(_)) => {}
                    // The terminal is gone.
                    Some(Err(_)) | None => return Next::Quit,
                }
            }
        };
        tokio::time::timeout(wait, pressed).await.unwrap_or(Next::Look)
    }

    /// Waits until the user quits.
    pub(super) async fn quit(&mut self) {
        while !matches!(self.next(Duration::from_secs(3600)).await, Next::Quit) {}
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(self.out, EnableLineWrap, Show, LeaveAlternateScreen);
        if self.keys.is_some() {
            let _ = disable_raw_mode();
        }
    }
}
