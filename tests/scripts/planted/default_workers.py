import argparse

from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", default=0, type=int)
parser.add_argument("-j", "--jobs", dest="threads", default=4, type=int)
args = parser.parse_args()
train = DataLoader(pictures(), num_workers=args.num_workers)  # expect: num-workers
val = DataLoader(pictures(), num_workers=args.threads)
