-- +goose Up
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, pages int NOT NULL, pdf text);

-- +goose Down
DROP TABLE orders;
