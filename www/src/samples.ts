import type { SourceFile } from "./api.ts";

/** Small test files for trying the page. */
export const samples: Record<string, SourceFile> = {
  Go: {
    path: "limiter_test.go",
    content: `package limiter

import "testing"

func TestAllowsUpToTheLimit(t *testing.T) {
	l := New(3)
	for i := 0; i < 3; i++ {
		if !l.Allow("a") {
			t.Fatalf("request %d was refused", i)
		}
	}
}

func TestRefusesPastTheLimit(t *testing.T) {
	l := New(0)
	if l.Allow("a") {
		t.Fatal("allowed past the limit")
	}
}

func TestCountsEachKeyByItself(t *testing.T) {
	l := New(1)
	l.Allow("a")
	if !l.Allow("b") {
		t.Fatal("another key was refused")
	}
}
`,
  },
  Rust: {
    path: "window.rs",
    content: `#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_starts_with_its_first_request() {
        assert_eq!(Window::new(10).left(), 10);
    }

    #[test]
    fn a_full_window_refuses() {
        let mut window = Window::new(1);
        window.take();
        assert!(window.take().is_err());
    }
}
`,
  },
  Python: {
    path: "test_quota.py",
    content: `import pytest


def test_a_new_user_has_everything_left():
    assert Quota(limit=50).remaining == 50


@pytest.mark.parametrize("amount", [1, 10, 50])
def test_a_reservation_lowers_what_is_left(amount):
    quota = Quota(limit=50)
    quota.reserve(amount)
    assert quota.remaining == 50 - amount


class TestRelease:
    def test_refunds_everything(self):
        quota = Quota(limit=50)
        quota.reserve(50).release()
        assert quota.remaining == 50
`,
  },
  TypeScript: {
    path: "queue.test.ts",
    content: `import { describe, expect, it } from "vitest";

describe("a lane", () => {
  it("hands out the oldest job first", () => {
    expect(laneOf("a", "b").next()).toBe("a");
  });

  it("is empty after its last job", () => {
    const lane = laneOf("a");
    lane.next();
    expect(lane.next()).toBeUndefined();
  });
});
`,
  },
};
