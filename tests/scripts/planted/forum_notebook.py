#!/usr/bin/env python
# coding: utf-8

# # Plant pathology: EfficientNet baseline (runs out of memory after 2 epochs??)

# In[1]:


get_ipython().system('pip install -q albumentations timm')


# In[2]:


import gc
import os
import cv2
import numpy as np
import pandas as pd
import timm
import torch
import torch.nn as nn
import albumentations as A
from albumentations.pytorch import ToTensorV2
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import Dataset, DataLoader
from tqdm.notebook import tqdm


# In[3]:


class CFG:
    seed = 42
    folds = 5
    epochs = 8
    bs = 32
    size = 384
    num_workers = 0
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


# In[4]:


df = pd.read_csv('../input/plant-pathology/train.csv')
df['fold'] = -1
skf = StratifiedKFold(CFG.folds, shuffle=True, random_state=CFG.seed)
for i, (_, idx) in enumerate(skf.split(df, df.label)):
    df.loc[idx, 'fold'] = i


# In[5]:


train_tfms = A.Compose([
    A.Resize(1024, 1024),  # expect: resized-twice
    A.HorizontalFlip(p=0.5),
    A.ShiftScaleRotate(p=0.5),
    A.Resize(CFG.size, CFG.size),
    A.Normalize(),
    ToTensorV2(),
])
valid_tfms = A.Compose([A.Resize(CFG.size, CFG.size), A.Normalize(), ToTensorV2()])


class PlantDataset(Dataset):
    def __init__(self, df, tfms):
        self.df = df.reset_index(drop=True)
        self.tfms = tfms

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        row = self.df.iloc[i]
        img = cv2.imread(f'../input/plant-pathology/images/{row.image_id}.jpg')
        img = cv2.cvtColor(img, cv2.COLOR_BGR2RGB)
        img = self.tfms(image=img)['image']
        return img.to(CFG.device), torch.tensor(row.label).to(CFG.device)  # expect: device-in-dataset, device-in-dataset


# In[6]:


def run_fold(fold):
    train_df = df[df.fold != fold]
    valid_df = df[df.fold == fold]
    valid_ds = PlantDataset(valid_df, valid_tfms)
    valid_loader = DataLoader(valid_ds, batch_size=CFG.bs * 2, num_workers=CFG.num_workers)  # expect: num-workers, pin-memory

    model = timm.create_model('efficientnet_b3', pretrained=True, num_classes=4).to(CFG.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    history = {'train_loss': [], 'valid_acc': []}

    for epoch in range(CFG.epochs):
        # new loader every epoch so that it gets shuffled
        train_loader = DataLoader(  # expect: loader-in-epoch, pin-memory
            PlantDataset(train_df, train_tfms), batch_size=CFG.bs, shuffle=True, drop_last=True, num_workers=os.cpu_count() * 4)  # expect: too-many-workers
        model.train()
        train_loss = 0
        for images, labels in tqdm(train_loader, leave=False):
            optimizer.zero_grad()
            preds = model(images)
            loss = criterion(preds, labels)
            loss.backward()
            optimizer.step()
            train_loss += loss * images.size(0)  # expect: kept-graph
        history['train_loss'].append(train_loss / len(train_df))

        model.eval()
        oof = []
        for images, labels in tqdm(valid_loader, leave=False):
            preds = model(images)  # expect: no-grad
            oof.append(preds.softmax(1).cpu())
        oof = torch.cat(oof)
        acc = (oof.argmax(1).numpy() == valid_df.label.values).mean()
        history['valid_acc'].append(acc)
        print(f'fold {fold} epoch {epoch} acc {acc:.4f}')
    return history


# In[7]:


for fold in range(CFG.folds):
    run_fold(fold)
    gc.collect()
    torch.cuda.empty_cache()
