// The types of the parts that are used here, because the package has none.
declare module "autocannon" {
  export default function autocannon(options: object): Promise<unknown>;
}
