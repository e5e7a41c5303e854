// As much of it as is used here; it brings no types.
declare module "autocannon" {
  export default function autocannon(options: object): Promise<unknown>;
}
