/** A typical test file in Go, with a helper that is not a test. */
export const goFile = {
  path: "limiter/limiter_test.go",
  content: `package limiter

import "testing"

func newLimiter(t *testing.T) *Limiter {
	t.Helper()
	return New(3)
}

func TestAllowsUpToTheLimit(t *testing.T) {
	l := newLimiter(t)
	for i := 0; i < 3; i++ {
		if !l.Allow("a") {
			t.Fatalf("request %d was refused", i)
		}
	}
}

func TestRefusesPastTheLimit(t *testing.T) {
	l := newLimiter(t)
	for i := 0; i < 3; i++ {
		l.Allow("a")
	}
	if l.Allow("a") {
		t.Fatal("the fourth request was allowed")
	}
}

func TestCountsEachKeyByItself(t *testing.T) {
	l := newLimiter(t)
	l.Allow("a")
	if !l.Allow("b") {
		t.Fatal("another key was refused")
	}
}
`,
};

export const goTests = ["TestAllowsUpToTheLimit", "TestRefusesPastTheLimit", "TestCountsEachKeyByItself"];

export const rustFile = {
  path: "src/window.rs",
  content: `pub fn width() -> u64 { 60 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_minute() {
        assert_eq!(width(), 60);
    }

    #[tokio::test]
    async fn a_window_ends() {
        assert!(width() > 0);
    }
}
`,
};

export const rustTests = ["a_window_is_a_minute", "a_window_ends"];
