// The worker in Go of the conformance suite. conformance.rs describes the arguments of a job.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-queue/weir/clients/go"
)

type behavior struct {
	Attempts *int    `json:"attempts"`
	Seconds  float64 `json:"seconds"`
	File     string  `json:"file"`
	Fails    string  `json:"fails"`
	Ignores  bool    `json:"ignores"`
	Nul      bool    `json:"nul"`
	Size     int     `json:"size"`
}

type lasting struct{ behavior }

func (lasting) Kind() string     { return "test:lasting" }
func (l lasting) what() behavior { return l.behavior }

type brief struct{ behavior }

func (brief) Kind() string     { return "test:brief" }
func (b brief) what() behavior { return b.behavior }

type arguments interface {
	river.JobArgs
	what() behavior
}

type worker[T arguments] struct {
	river.WorkerDefaults[T]
	pool *pgxpool.Pool
}

// River's own limit would be a minute.
func (w *worker[T]) Timeout(*river.Job[T]) time.Duration { return -1 }

func (w *worker[T]) Work(ctx context.Context, job *river.Job[T]) error {
	return weir.Work(ctx, weir.Client{}, w.pool, job, func(ctx context.Context, tx pgx.Tx) (any, *int64, error) {
		args := job.Args.what()
		if args.Ignores {
			ctx = context.WithoutCancel(ctx)
		}
		// A report of any other attempt than the current one is refused.
		later := *job.JobRow
		later.Attempt++
		if err := (weir.Client{}).Progress(ctx, w.pool, &later, 0.5, ""); !errors.Is(err, weir.ErrFencedOut) {
			return nil, nil, fmt.Errorf("the progress of another attempt: %w", err)
		}
		insert := func() error {
			_, err := tx.Exec(ctx, "INSERT INTO results (job, attempt) VALUES ($1, $2)", job.ID, job.Attempt)
			return err
		}
		if err := insert(); err != nil {
			return nil, nil, err
		}
		if args.Attempts == nil && job.Attempt == 1 || args.Attempts != nil && job.Attempt <= *args.Attempts {
			if err := run(ctx, tx, args, fmt.Sprint(job.ID, " ", job.Attempt)); err != nil {
				return nil, nil, err
			}
		}
		if err := insert(); err != nil {
			return nil, nil, err
		}
		text := strings.Repeat("x", args.Size)
		if args.Nul {
			text = "\x00"
		}
		return map[string]string{"text": text}, nil, nil
	})
}

// run does what an attempt does that does not end at once.
func run(ctx context.Context, tx pgx.Tx, args behavior, name string) error {
	switch args.Fails {
	case "nul":
		return errors.New("out of \x00paper")
	case "half":
		return errors.New("out of \xffpaper")
	case "network":
		return fmt.Errorf("out of reach: %w", syscall.ECONNREFUSED)
	case "statement":
		_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)")
		return err
	case "connection":
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	until := time.After(time.Duration(args.Seconds * float64(time.Second)))
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-until:
			return nil
		case now := <-tick.C:
			if args.File == "" {
				continue
			}
			file, err := os.OpenFile(args.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(file, "%s %.3f\n", name, float64(now.UnixMilli())/1000)
			if err = errors.Join(err, file.Close()); err != nil {
				return err
			}
		}
	}
}

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 30
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker[lasting]{pool: pool})
	river.AddWorker(workers, &worker[brief]{pool: pool})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		LeaderElectionDisabled: true,
		Queues:                 map[string]river.QueueConfig{"lasting_default": {MaxWorkers: 24}, "brief_default": {MaxWorkers: 2}},
		Workers:                workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := (weir.Client{}).KeepAlive(ctx, pool, client.ID()); err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	<-stop
	if err := client.Stop(ctx); err != nil {
		log.Fatal(err)
	}
}
