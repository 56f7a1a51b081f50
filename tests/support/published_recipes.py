"""The ops of recipes in public repositories, in short: sizes are smaller, and helper classes written anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torchvision.transforms as v1
from PIL import Image, ImageFilter
from torchvision.transforms import v2

__all__ = ["REFUSED", "published"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Recipes = dict[str, list[list[Any]]]

# Those without images of one shape, and those that torchvision itself refuses, with what their error says.
REFUSED = {
    "KonWski/knee_mri transforms.py": "a batch needs one shape",
    "EmmanuelOlofintuyi/SeniorSem_MainProject argumantation.py": "fails on a made image",
    "muhmmad-ahmad-1/ATML_G4 models/transforms.py": "Normalize takes tensors of floats",
}


def blurred(image: Any) -> Any:
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))


def squared(image: Any) -> Any:
    return v1.CenterCrop(min(image.size))(image)


def stacked(crops: Any) -> Any:
    return torch.stack([v1.ToTensor()(crop) for crop in crops])


class Noise:
    def __call__(self, tensor: Any) -> Any:
        return tensor + torch.randn(tensor.size())


class Rescaled:
    def __call__(self, sample: Any) -> Any:
        return 2 * sample - 1


class Hole:
    """A square without values, as Cutout's and the re-identification recipes' own erasing make it."""

    def __call__(self, image: Any) -> Any:
        row, column = (random.randrange(max(1, size - 8)) for size in image.shape[1:])
        image[:, row : row + 8, column : column + 8] = 0
        return image


class Policy:
    def __call__(self, image: Any) -> Any:
        return image.rotate(random.choice([-10, 10]), fillcolor=(128, 128, 128))


def published() -> Recipes:
    """The recipes by the address of their file at github.com."""
    return _known() | _plain() | _own_functions() | _unusual_places()


def _known() -> Recipes:
    """Those of widely used repositories."""
    values = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    half = [v1.ToTensor(), v1.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
    tensor = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)]
    crop, flip, gray = v1.RandomResizedCrop(64, (0.2, 1.0)), v1.RandomHorizontalFlip(), v1.RandomGrayscale(0.2)
    bicubic = v1.RandomResizedCrop(64, interpolation=Image.Resampling.BICUBIC)
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8)
    square = [v1.Resize(64), v1.CenterCrop(64)]
    cifar = [v1.RandomCrop(32, padding=4), flip]
    automatic = v1.RandAugment(), v1.TrivialAugmentWide(), v1.AutoAugment(), v1.AugMix()
    solarize = v1.RandomApply([v1.Lambda(lambda image: image.point(lambda value: 255 - value))], 0.2)
    return {
        "pytorch/examples imagenet/main.py": [[v1.RandomResizedCrop(64), flip, *values], [*square, *values]],
        "pytorch/examples mnist/main.py": [[v1.Resize((28, 28)), v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))]],
        "pytorch/examples dcgan/main.py": [[*square, *half]],
        "pytorch/examples fast_neural_style/neural_style/neural_style.py": [
            [*square, v1.ToTensor(), v1.Lambda(lambda image: image.mul(255))]
        ],
        "pytorch/vision references/classification/presets.py": [
            *([crop, flip, op, *tensor, v1.RandomErasing(0.1)] for op in automatic),
            [*square, *tensor],
        ],
        "facebookresearch/moco main_moco.py": [
            [crop, gray, v1.ColorJitter(0.4, 0.4, 0.4, 0.4), flip, *values],
            [crop, jitter, gray, v1.RandomApply([blurred], 0.5), flip, *values],
        ],
        "facebookresearch/simsiam main_simsiam.py": [
            [crop, jitter, gray, v1.RandomApply([blurred], 0.5), flip, *values]
        ],
        "facebookresearch/dino main_dino.py": [[bicubic, v1.Compose([flip, jitter, gray]), blurred, solarize, *values]],
        "facebookresearch/barlowtwins main.py": [[bicubic, flip, jitter, gray, blurred, solarize, *values]],
        "facebookresearch/mae main_pretrain.py": [
            [v1.RandomResizedCrop(64, (0.2, 1.0), interpolation=3), flip, *values]
        ],
        "sthalles/SimCLR data_aug/contrastive_learning_dataset.py": [
            [crop, flip, jitter, gray, blurred, v1.ToTensor()]
        ],
        "openai/CLIP clip/clip.py": [
            [v1.Resize(64, Image.Resampling.BICUBIC), square[1], lambda image: image.convert("RGB"), *values]
        ],
        "kuangliu/pytorch-cifar main.py": [[*cifar, *values]],
        "xternalz/WideResNet-pytorch train.py": [[*cifar, *values]],
        "weiaicunzai/pytorch-cifar100 utils.py": [[*cifar, v1.RandomRotation(15), *values]],
        "uoguelph-mlrg/Cutout util/cutout.py": [[*cifar, *values, Hole()]],
        "eriklindernoren/PyTorch-GAN implementations/cyclegan/cyclegan.py": [
            [v1.Resize(71, Image.Resampling.BICUBIC), v1.RandomCrop((64, 64)), flip, *half]
        ],
    }


def _plain() -> Recipes:
    """Those of torchvision's ops alone, in their usual places."""
    values = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    half = [v1.ToTensor(), v1.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
    flip, upside, gray = v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.RandomGrayscale(0.2)
    square = [v1.Resize(64), v1.CenterCrop(56)]
    strong = v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    jitter, blur = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8), v1.GaussianBlur(23)
    return {
        "rowenci/kaggle-Dog-Breed-Identification train/getTrainingDataset.py": [
            [v1.RandomResizedCrop(56, (0.08, 1.0), (0.75, 4 / 3)), flip, v1.ColorJitter(0.4, 0.4, 0.4), *values]
        ],
        "icecream8086/train-aab CNN_lib/dataset_sample.py": [
            [v1.RandomResizedCrop(56), flip, v1.ColorJitter(0.1, 0.1, 0.1, 0.05), v1.RandomRotation(10), *values]
        ],
        "icecream8086/train-aab CNN_lib/dataset_normal.py": [
            [v1.Resize(64), v1.RandomRotation(30), v1.RandomResizedCrop(56), flip, *values]
        ],
        "AmzadHossainrafis/Diffusion_model src/Diffusion/components/data_transformation.py": [
            [v1.Resize(80), v1.RandomResizedCrop(64, (0.8, 1.0)), *half]
        ],
        "u-shrestha/nn-gpt ab/gpt/brute/trans/out_gen/RandomRotation_RandomPerspective_5.py": [
            [v1.RandomRotation(0), v1.RandomPerspective(0.26, 0.58), v1.Resize((64, 64)), *half]
        ],
        "u-shrestha/nn-gpt ab/gpt/brute/trans/out_gen/RandomAffine_33.py": [
            [v1.RandomAffine(13, (0.0, 0.03), (1.05, 1.91), (2.69, 8.51)), v1.Resize((64, 64)), *half]
        ],
        "u-shrestha/nn-gpt ab/gpt/brute/trans/dataset_epoch1/RandomAutocontrast_RandomEqualize_256.py": [
            [v1.RandomAutocontrast(0.27), v1.RandomEqualize(0.57), v1.Resize((64, 64)), *half]
        ],
        "VKev/Contrastive-Weight-Kernel-Loss util/transform.py": [
            [v1.Grayscale(1), v1.Resize(56), v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))]
        ],
        "cuongdtone/AutoEncoder utils/transform.py": [[v1.Grayscale(), v1.ToTensor(), v1.Normalize([0.5], [0.5])]],
        "rameshkrcode/AI-Assisted-Programming-for-Web-and-Machine-Learning "
        "Chapter_07/Code/image_preprocessing_transforms.py": [
            [v1.Resize((32, 32)), v1.ToTensor(), v1.Normalize((0.5,), (0.5,))]
        ],
        "lykkkkkkkkkkkkkkk/dewarp Lowlight/data/transforms.py": [
            [v1.RandomCrop((48, 48)), flip, upside, v1.ToTensor()],
            [v1.ToTensor()],
        ],
        "MHamdyk/ArcFace-ReID-pytorch src/transforms.py": [
            [
                *(
                    v1.RandomResizedCrop(40, (0.8, 1.0)),
                    flip,
                    v1.RandomRotation(15),
                    v1.ColorJitter(0.2, 0.2, 0.2, 0.1),
                ),
                v1.Compose([v1.Resize((40, 40)), *half]),
            ]
        ],
        "alexydatascience/resnet20-pruning transforms/transforms.py": [
            [v1.Pad(4), v1.RandomCrop(32), flip, v1.ToTensor()]
        ],
        "alvarobartt/understanding-resnet implementation/resnet_cifar10_transform.py": [
            [v1.Pad(4), flip, v1.RandomCrop((32, 32)), *half]
        ],
        "SchapiroLabor/micronuclAI src/model/augmentations.py": [
            [
                *(v1.Resize((64, 64)), flip, upside, v1.RandomRotation(30)),
                *(v1.RandomApply([v1.GaussianBlur((3, 3))], 0.3), v1.Grayscale(3), *values),
            ]
        ],
        "Genvekt/SSL_Chest_Xray transforms/finetuning.py": [
            [v1.Resize((32, 32)), v1.ColorJitter(0.25, 0.25, 0.25), flip, v1.RandomRotation(10), *values]
        ],
        "SeiEinFisch/STiDS-Tree-Cover-Segmentation data/transforms.py": [
            [v1.RandomResizedCrop(64, (0.2, 1.0)), flip, jitter, gray, v1.RandomApply([blur], 0.5), *values]
        ],
        "john-mlr/CIFAR-10-SimCLR simclr/modules/transforms.py": [
            [v1.RandomResizedCrop(32), flip, strong, gray, v1.RandomApply([v1.GaussianBlur(3)], 0.5), v1.ToTensor()]
        ],
        "salarim/PyTorch-BYOL data/transforms.py": [
            [v1.RandomResizedCrop(32, (0.2, 1.0)), flip, strong, gray, *values]
        ],
        "shrey-001/Domain-Adaptation data/transforms/__init__.py": [
            [v1.RandAugment(2, 9, 31), *square, *values],
            [v1.Grayscale(1), v1.Resize((28, 28)), v1.ToTensor(), v1.Normalize([0.5], [0.5])],
        ],
        "abbeyroad1027-glitch/rokey_computer_vision CNN_Practice/251112_1.py": [
            [v1.RandomResizedCrop(56), flip, *half, v1.RandomErasing(0.5)]
        ],
        "wenhao728/awesome-diffusion-v2v third_party/viclip/image_transform.py": [
            [v1.Resize(56, v1.InterpolationMode.BICUBIC), v1.CenterCrop(56), *values]
        ],
        "sathishkumar67/Vision-Transformers utils.py": [[flip, v1.RandomRotation(10), *square, v1.ToTensor()]],
        "sk27110/DLProject src/transforms.py": [
            [v1.RandomResizedCrop(56, (0.8, 1.0)), flip, v1.ColorJitter(0.1, 0.1), *values]
        ],
        "lixixi89055465/py_stu limu/exam05/49_2.py": [
            [v1.Resize((40, 56)), v1.ToTensor(), v1.Normalize(torch.tensor(MEAN), torch.tensor(STD))]
        ],
    }


def _own_functions() -> Recipes:
    """Those with functions and classes of their own."""
    values = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    flip = v1.RandomHorizontalFlip()
    doubled: Callable[[Any], Any] = lambda image: (image * 2) - 1  # noqa: E731
    return {
        "ZhanghansenIT/diffusion_pytorch utils/script_utils.py": [[v1.ToTensor(), Rescaled()]],
        "YHL04/ddpm dataset.py": [
            [v1.Resize((32, 32)), flip, v1.ToTensor(), v1.Lambda(doubled), v1.Lambda(lambda image: image.to("cpu"))]
        ],
        "SumeetBatra/diffusion_models dataset/mnist_fashion_dataset.py": [[flip, v1.ToTensor(), v1.Lambda(doubled)]],
        "activeloopai/deeplake hub/integrations/skorch/utils/utils.py": [
            [v1.ToTensor(), v1.Lambda(lambda image: image.repeat(int(3 / image.shape[0]), 1, 1))]
        ],
        "forbiddenvelocity/OCR- transformations.py": [[v1.ToTensor(), v1.Lambda(lambda image: image * 255)]],
        "Alisa-Kunapinun/tirads_classification transform.py": [
            [v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,)), Noise()]
        ],
        "Blaise143/stochastic-interpolant-diffusion data/transforms.py": [
            [
                v1.Lambda(lambda image: v1.functional.rotate(image, -90)),
                v1.Lambda(v1.functional.hflip),
                v1.ToTensor(),
                v1.Normalize((0.5,), (0.5,)),
            ]
        ],
        "mikwieczorek/centroids-reid datasets/transforms/build.py": [
            [v1.Resize((64, 32)), flip, v1.Pad(10), v1.RandomCrop((64, 32)), *values, Hole()]
        ],
        "meghsat/A-SYSTEM-AND-METHOD-FACILITATING-DETECTION-OF-NON-FACE-MASK-USERS augmentation/readme.md": [
            [v1.RandomCrop(32, 4, fill=128), flip, Policy(), v1.ToTensor(), Hole(), v1.Normalize(MEAN, STD)]
        ],
        "KonWski/knee_mri transforms.py": [
            [
                *(v1.ToTensor(), flip, v1.RandomAffine(0, (0.05, 0.05))),
                v1.Lambda(lambda image: torch.unsqueeze(image, dim=0)),
                v1.Lambda(lambda image: image.permute(2, 0, 1, 3)),
                v1.Lambda(lambda image: image.repeat(1, 3, 1, 1)),
            ]
        ],
        "jiye-ML/PyTorch-Study code_03_transforms/01-transforms-PIL/transforms.FiveCrop.py": [
            [v1.FiveCrop(48), v1.Lambda(stacked)]
        ],
    }


def _unusual_places() -> Recipes:
    """Those with an op on an image of another type than most have there."""
    values, half = v1.Normalize(MEAN, STD), v1.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    flip, tensor = v1.RandomHorizontalFlip(), v1.ToTensor()
    some = [v1.ColorJitter(), v1.RandomGrayscale(), v1.RandomAffine((-90, 90)), v1.RandomCrop(48)]
    wide = v1.RandomAffine(0, (0.05, 0.05), (0.95, 1.05), 3)
    return {
        "Octo-Opt/DemOpt transform.py": [[tensor, v1.RandomRotation(5), half]],
        "u-shrestha/nn-gpt ab/gpt/brute/trans/dataset_epoch1/A11B3.py": [
            [v1.RandomCrop(30), v1.Pad(1, (215, 42, 5), "reflect"), v1.Resize((64, 64)), tensor, half]
        ],
        "TheNMD/ai-project3 find_transforms.py": [
            [
                v2.ToImage(),
                v2.Resize((56, 56)),
                v2.ToDtype(torch.float32, True),
                v2.Normalize(MEAN, STD),
                v2.ToPILImage(),
            ]
        ],
        "keshavsbhandari/CS4347 assign3_convolution_nn/dataloader/__init__.py": [
            [
                v1.RandomApply([*some, v1.RandomHorizontalFlip(0.1), v1.RandomPerspective(p=0.1)]),
                *(v1.Resize((48, 48)), tensor),
            ]
        ],
        "dmarew/ATG-with-Mixture-of-Autoencoders scripts/random_transformer.py": [
            [
                *(v1.ToPILImage(), v1.ColorJitter([0.6, 1.4], 0.0, 0.0, (-0.02, 0.02)), v1.Resize((56, 56)), wide),
                *(tensor, v1.RandomErasing(0.2, value=(0.5, 0.5, 0.5))),
            ]
        ],
        "KonWski/CAM_Stanford_Cars transforms.py": [
            [
                *(tensor, v1.Resize((64, 64)), values, flip, v1.RandomAffine(0, (0.1, 0.1))),
                v1.ColorJitter(brightness=(0.5, 1), hue=0.3),
            ]
        ],
        "debryu/CQA utils/transforms.py": [[tensor, v1.Resize((56, 56))]],
        "brownjordan317/handoff gesture_recognition/augment_dataset.py": [
            [
                *(flip, v1.RandomRotation(15), v1.RandomResizedCrop(56, (0.9, 1.1))),
                *(v1.ColorJitter(0.3, 0.3, 0.2), tensor),
            ]
        ],
        "Mike-Wazovsky/image-expansion-tool src/data/data_transforms.py": [
            [v1.RandomResizedCrop(128), flip, v1.RandomRotation(15), tensor]
        ],
        "EmmanuelOlofintuyi/SeniorSem_MainProject argumantation.py": [
            [v1.CenterCrop(50), v1.FiveCrop((20, 25)), v1.Grayscale(1), tensor, values]
        ],
        "muhmmad-ahmad-1/ATML_G4 models/transforms.py": [[v1.Resize(64), v1.CenterCrop(56), values]],
    }
