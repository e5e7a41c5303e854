// River for Go with the limiter of ADR-10: in this process's memory, and what is over the limit is snoozed.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type args struct {
	User string `json:"user_id"`
}

func (args) Kind() string { return "work" }

// limiter counts what runs here, by user.
type limiter struct {
	sync.Mutex
	running map[string]int
}

func (l *limiter) take(user string, slots int) bool {
	l.Lock()
	defer l.Unlock()
	if l.running[user] >= slots {
		return false
	}
	l.running[user]++
	return true
}

func (l *limiter) release(user string) {
	l.Lock()
	defer l.Unlock()
	l.running[user]--
}

type worker struct {
	river.WorkerDefaults[args]
	limiter limiter
	pool    *pgxpool.Pool
	takes   time.Duration
}

func (w *worker) Work(ctx context.Context, job *river.Job[args]) error {
	user := job.Args.User
	var slots int
	if err := w.pool.QueryRow(ctx, "SELECT slots FROM bench_users WHERE id = $1", user).Scan(&slots); err != nil {
		return err
	}
	if !w.limiter.take(user, slots) {
		return river.JobSnooze(30*time.Second + rand.N(10*time.Second))
	}
	defer w.limiter.release(user)
	say("+", user, job.ID)
	if w.takes > 0 {
		time.Sleep(w.takes)
	}
	say("-", user, job.ID)
	return nil
}

func say(what, user string, job int64) {
	fmt.Fprintf(os.Stdout, "%s %s %d %d\n", what, user, job, time.Now().UnixMicro())
}

func main() {
	ctx := context.Background()
	callers := number("PEER_CALLERS")
	config := must(pgxpool.ParseConfig(os.Getenv("DATABASE_URL")))
	config.MaxConns = int32(callers)
	pool := must(pgxpool.NewWithConfig(ctx, config))
	defer pool.Close()
	switch os.Args[1] {
	case "setup":
		must(must(rivermigrate.New(riverpgxv5.New(pool), nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	case "produce":
		produce(ctx, pool, callers)
	case "work":
		work(ctx, pool)
	}
}

// produce inserts the jobs that arrive on standard input, one per line, and prints an empty line when they are inserted.
func produce(ctx context.Context, pool *pgxpool.Pool, callers int) {
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)}))
	var users []string
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if line := lines.Text(); line != "" {
			users = append(users, line[:36])
			continue
		}
		begun := time.Now()
		waiting := make(chan string)
		var all sync.WaitGroup
		for range min(callers, len(users)) {
			all.Go(func() {
				for user := range waiting {
					must(client.Insert(ctx, args{User: user}, nil))
				}
			})
		}
		for _, user := range users {
			waiting <- user
		}
		close(waiting)
		all.Wait()
		fmt.Println("done", begun.UnixMicro(), time.Now().UnixMicro())
		users = users[:0]
	}
}

func work(ctx context.Context, pool *pgxpool.Pool) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{
		limiter: limiter{running: map[string]int{}},
		pool:    pool,
		takes:   time.Duration(number("PEER_JOB_MS")) * time.Millisecond,
	})
	config := &river.Config{
		FetchCooldown: time.Millisecond,
		Logger:        slog.New(slog.DiscardHandler),
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: number("PEER_WORKERS")}},
		Workers:       workers,
	}
	if os.Getenv("PEER_RESCUE") == "shortest" {
		// Never less than a job may take.
		config.JobTimeout = 2 * time.Second
		config.RescueStuckJobsAfter = 2 * time.Second
	}
	client := must(river.NewClient(riverpgxv5.New(pool), config))
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := client.StopAndCancel(ctx); err != nil {
		log.Fatal(err)
	}
}

func number(variable string) int { return must(strconv.Atoi(os.Getenv(variable))) }

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
