// Orders with a job each, in a product that has goose and River. Each run places orders of a customer, and works their
// jobs: `go run . CUSTOMER PAGES…`.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	weir "github.com/weir-queue/weir/clients/go"
)

//go:embed migrations
var migrations embed.FS

// client calls Weir's functions in Weir's schema.
var client = weir.Client{Schema: "weir"}

type render struct {
	Order int64 `json:"order"`
	Pages int   `json:"pages"`
}

// Kind is that of the service in weir.toml.
func (render) Kind() string { return "shop:render" }

type renderer struct {
	river.WorkerDefaults[render]
	pool *pgxpool.Pool
}

// Work commits the result together with the completion of the job.
func (w *renderer) Work(ctx context.Context, job *river.Job[render]) error {
	return weir.Work(ctx, client, w.pool, job, func(ctx context.Context, tx pgx.Tx) (any, *int64, error) {
		_, err := tx.Exec(ctx, "UPDATE orders SET pdf = $1 WHERE id = $2", fmt.Sprint(job.ID, ".pdf"), job.Args.Order)
		return nil, nil, err
	})
}

var errRefused = errors.New("refused")

// place inserts an order and submits its job, or does neither.
func place(ctx context.Context, pool *pgxpool.Pool, customer string, pages int) (string, error) {
	var outcome string
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		args := render{Pages: pages}
		insert := "INSERT INTO orders (customer, pages) VALUES ($1, $2) RETURNING id"
		if err := tx.QueryRow(ctx, insert, customer, pages).Scan(&args.Order); err != nil {
			return err
		}
		submitted, err := client.SubmitTx(ctx, tx, weir.Job{Subject: customer, Service: "render", Args: args})
		outcome = submitted.Outcome
		if err == nil && !submitted.Accepted() {
			return errRefused
		}
		return err
	})
	if errors.Is(err, errRefused) {
		err = nil
	}
	return outcome, err
}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, customer string, orders []string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	database := stdlib.OpenDBFromPool(pool)
	defer database.Close()
	goose.SetBaseFS(migrations)
	if err := goose.SetDialect("postgres"); err != nil {
		return err
	}
	if err := goose.Up(database, "migrations"); err != nil {
		return err
	}

	workers := river.NewWorkers()
	river.AddWorker(workers, &renderer{pool: pool})
	fleet, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		LeaderElectionDisabled: true, // `weir schedule` leads
		Queues:                 map[string]river.QueueConfig{"render_priority": {MaxWorkers: 5}, "render_default": {MaxWorkers: 5}},
		Workers:                workers,
	})
	if err != nil {
		return err
	}
	alive, end := context.WithCancel(ctx)
	defer end()
	if err := client.KeepAlive(alive, pool, fleet.ID()); err != nil {
		return err
	}
	if err := fleet.Start(ctx); err != nil {
		return err
	}
	for _, pages := range orders {
		pages, err := strconv.Atoi(pages)
		if err != nil {
			return err
		}
		outcome, err := place(ctx, pool, customer, pages)
		if err != nil {
			return err
		}
		fmt.Printf("%d pages: %s\n", pages, outcome)
	}
	for waiting := 1; waiting > 0; time.Sleep(100 * time.Millisecond) {
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM orders WHERE pdf IS NULL").Scan(&waiting); err != nil {
			return err
		}
	}
	fmt.Println("all orders are rendered")
	return fleet.Stop(ctx)
}
