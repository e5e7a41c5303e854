// Submits with database/sql and in batches, for the user in the argument. Prints the outcomes.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-queue/weir/clients/go"
)

var client = weir.Client{Schema: os.Getenv("SCHEMA")}

func job(number int) weir.Job {
	args := map[string]any{"number": number, "text": "it's 100% :sure, $1 \\ \u2713"}
	return weir.Job{Subject: os.Args[1], Service: "analysis", Args: args, ExpiresIn: 10 * time.Minute, Tags: []string{"abc"}}
}

// withSQL inserts an order and submits its job, and commits or rolls back.
func withSQL(ctx context.Context, database *sql.DB, number int, commits bool) error {
	tx, err := database.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "INSERT INTO public.orders VALUES ($1)", number); err != nil {
		return err
	}
	submitted, err := client.SubmitSQL(ctx, tx, job(number))
	if err != nil {
		return err
	}
	fmt.Println(submitted.Outcome, submitted.Accepted(), submitted.Quota.Reserved)
	if commits {
		return tx.Commit()
	}
	return nil
}

// inBatch submits a job, a job of an unknown amount's size, and a job.
func inBatch(ctx context.Context, allOrNone bool) error {
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(ctx) }()
	return pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		large := int64(1_000_000)
		jobs := []weir.Job{job(10), job(11), job(12)}
		jobs[1].Amount = &large
		all, err := client.SubmitManyTx(ctx, tx, jobs, allOrNone)
		for _, one := range all {
			fmt.Printf("%q %v ", one.Outcome, one.Accepted())
		}
		fmt.Println()
		return err
	})
}

func main() {
	ctx := context.Background()
	database, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	for number, commits := range []bool{false, true} {
		if err := withSQL(ctx, database, number, commits); err != nil {
			log.Fatal(err)
		}
	}
	for _, allOrNone := range []bool{false, true} {
		if err := inBatch(ctx, allOrNone); err != nil {
			log.Fatal(err)
		}
	}
}
